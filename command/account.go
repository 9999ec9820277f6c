package command

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"strconv"
)

// frontUser runs the invoker where nobody else is named; members of frontGroup may use the sockets.
const (
	frontUser  = "fastiov"
	frontGroup = "fastiov"
)

// noAccount is the user id of the invoker on a machine that takes no new account: below those of
// the sandboxes, and above all that distributions give out.
const noAccount = 1_899_999_999

// An account is the user and group that a process runs as.
type account struct {
	name     string
	uid, gid int
}

// accountOf finds the user of that name, and makes it where it is absent.
func accountOf(name string, log *slog.Logger) (account, error) {
	u, err := user.Lookup(name)
	var unknown user.UnknownUserError
	if errors.As(err, &unknown) {
		why := makeUser(name)
		if u, err = user.Lookup(name); err != nil {
			log.Warn(
				"no such user, and none can be made: the invoker runs as a user id without a name",
				"user", name, "err", why, "uid", noAccount)
			return account{name, noAccount, noAccount}, nil
		}
	}
	if err != nil {
		return account{}, fmt.Errorf("--invoker-user %s: %w", name, err)
	}
	a := account{name: name}
	if a.uid, err = strconv.Atoi(u.Uid); err == nil {
		a.gid, err = strconv.Atoi(u.Gid)
	}
	if err == nil && a.uid == 0 {
		err = errors.New("that is root, which the invoker does without; name another user")
	}
	if err != nil {
		return account{}, fmt.Errorf("--invoker-user %s: %w", name, err)
	}
	return a, nil
}

func makeUser(name string) error {
	out, err := exec.Command("useradd", "--system", "--user-group", "--no-create-home",
		"--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", name).CombinedOutput()
	if err != nil && len(out) > 0 {
		err = errors.New(string(bytes.TrimSpace(out)))
	}
	return err
}

// groupOfSockets returns the group that may open the sockets of a process without an invoker of its
// own. It returns none if there is no such group, or if this user could not give the sockets to it.
func groupOfSockets() int {
	group, err := user.LookupGroup(frontGroup)
	if err != nil || os.Geteuid() != 0 {
		return nobodyElse
	}
	gid, err := strconv.Atoi(group.Gid)
	if err != nil {
		return nobodyElse
	}
	return gid
}
