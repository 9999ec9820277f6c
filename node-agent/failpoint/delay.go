package failpoint

// DelayEnv is the environment variable that delays a step, as name:duration. The kernel of a guest
// hands it to process 1, if it is a parameter of that kernel.
const DelayEnv = "FASTIOV_TEST_DELAY"

// GuestVFUp is the step that Delay can delay: the guest begins to bring up its VF.
const GuestVFUp Name = "guest-vf-up"
