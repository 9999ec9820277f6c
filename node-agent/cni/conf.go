package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// ownIPAM is the type of IPAM that the agent does itself, so that nothing is executed.
const ownIPAM = "fastiov"

// A conf is the plugin's configuration. Its keys are those of sriov-cni with their meaning, and
// driver, runDir and an ipam of type fastiov.
type conf struct {
	types.PluginConf

	DeviceID  string `json:"deviceID"`
	Driver    string `json:"driver"`
	RunDir    string `json:"runDir"`
	MAC       string `json:"mac"`
	MTU       int    `json:"mtu"`
	VLAN      *int   `json:"vlan"`
	VLANQoS   *int   `json:"vlanQoS"`
	VLANProto string `json:"vlanProto"`
	SpoofChk  string `json:"spoofchk"`
	Trust     string `json:"trust"`
	LinkState string `json:"link_state"`
	MinTxRate *int   `json:"min_tx_rate"`
	MaxTxRate *int   `json:"max_tx_rate"`
	LogLevel  string `json:"logLevel"`
	LogFile   string `json:"logFile"`

	IPAM struct {
		Type   string  `json:"type"`
		Ranges []Range `json:"-"`
		Routes []Route `json:"-"`
	} `json:"ipam"`

	RuntimeConfig struct {
		MAC            string `json:"mac"`
		DeviceID       string `json:"deviceID"`
		DeviceInfoFile string `json:"CNIDeviceInfoFile"`
	} `json:"runtimeConfig"`
}

// parse reads a configuration. It names the key whose value it refuses.
func parse(data []byte) (*conf, error) {
	c := &conf{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	err := c.parseIPAM(data)
	if err == nil {
		err = c.check()
	}
	if err == nil {
		err = version.ParsePrevResult(&c.PluginConf)
	}
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("network %s: %v", c.Name, err), "")
	}
	return c, nil
}

// takeArgs reads CNI_ARGS, by which older runtimes name a MAC. What runtimeConfig says counts more.
// Its other arguments, as those of Kubernetes, are for other plugins.
func (c *conf) takeArgs(text string) error {
	var args struct {
		types.CommonArgs
		MAC types.UnmarshallableString
	}
	args.IgnoreUnknown = true
	err := types.LoadArgs(text, &args)
	if mac := string(args.MAC); err == nil && mac != "" && c.RuntimeConfig.MAC == "" {
		if c.MAC, err = macOf(mac); err != nil {
			err = fmt.Errorf("MAC: %w", err)
		}
	}
	if err != nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: "+err.Error(), "")
	}
	return nil
}

func macOf(text string) (string, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 || mac[0]&1 == 1 {
		return "", fmt.Errorf("%q is no address of one interface, as 02:00:00:00:00:01", text)
	}
	return mac.String(), nil
}

// parseIPAM reads the ipam of type fastiov. That of another type is for another plugin.
func (c *conf) parseIPAM(data []byte) error {
	if c.IPAM.Type != ownIPAM {
		return nil
	}
	var own struct {
		IPAM struct {
			Ranges []Range `json:"ranges"`
			Routes []Route `json:"routes"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(data, &own); err != nil {
		return fmt.Errorf("ipam: %w", err)
	}
	c.IPAM.Ranges, c.IPAM.Routes = own.IPAM.Ranges, own.IPAM.Routes
	if len(c.IPAM.Ranges) == 0 {
		return errors.New(`ipam: "ranges" has no subnet`)
	}
	for i := range c.IPAM.Ranges {
		if err := c.IPAM.Ranges[i].Fill(); err != nil {
			return fmt.Errorf("ipam: %w", err)
		}
	}
	return nil
}

// Fill gives a range its defaults.
func (r *Range) Fill() error {
	if !r.Subnet.IsValid() {
		return errors.New("a range has no subnet, as in 10.1.0.0/24")
	}
	r.Subnet = r.Subnet.Masked()
	if !r.Gateway.IsValid() {
		r.Gateway = r.Subnet.Addr().Next()
	}
	if !r.First.IsValid() {
		r.First = r.Subnet.Addr().Next().Next()
	}
	for key, a := range map[string]netip.Addr{"first": r.First, "gateway": r.Gateway} {
		if !r.Subnet.Contains(a) {
			return fmt.Errorf("%s %s is not in %s", key, a, r.Subnet)
		}
	}
	return nil
}

// check refuses values that a key cannot have.
func (c *conf) check() error {
	if c.RuntimeConfig.MAC != "" {
		c.MAC = c.RuntimeConfig.MAC
	}
	if c.RuntimeConfig.DeviceID != "" {
		c.DeviceID = c.RuntimeConfig.DeviceID
	}
	if c.RunDir == "" {
		c.RunDir = "/run/fastiov"
	}
	if c.MAC != "" {
		mac, err := macOf(c.MAC)
		if err != nil {
			return fmt.Errorf("mac: %w", err)
		}
		c.MAC = mac
	}
	for _, key := range []struct {
		name     string
		value    *int
		from, to int
	}{
		{"vlan", c.VLAN, 0, 4094}, {"vlanQoS", c.VLANQoS, 0, 7}, {"mtu", &c.MTU, 0, 65535},
		{"min_tx_rate", c.MinTxRate, 0, 1 << 30}, {"max_tx_rate", c.MaxTxRate, 0, 1 << 30},
	} {
		if key.value != nil && (*key.value < key.from || *key.value > key.to) {
			return fmt.Errorf("%s: %d is not in %d … %d", key.name, *key.value, key.from, key.to)
		}
	}
	for _, key := range []struct {
		name, value string
		of          []string
	}{
		{"vlanProto", strings.ToLower(c.VLANProto), []string{"802.1q", "802.1ad"}},
		{"spoofchk", c.SpoofChk, []string{"on", "off"}}, {"trust", c.Trust, []string{"on", "off"}},
		{"link_state", c.LinkState, []string{"auto", "enable", "disable"}},
		{"driver", c.Driver, []string{"netdev", "vfio"}},
		{"logLevel", c.LogLevel, []string{"panic", "error", "warning", "info", "debug"}},
	} {
		if key.value != "" && !slices.Contains(key.of, key.value) {
			return fmt.Errorf("%s: %q is not one of %s", key.name, key.value,
				strings.Join(key.of, ", "))
		}
	}
	untagged := c.VLAN == nil || *c.VLAN == 0
	switch {
	case untagged && c.VLANQoS != nil && *c.VLANQoS != 0:
		return errors.New("vlanQoS: it needs a vlan that is not 0")
	case untagged && strings.EqualFold(c.VLANProto, "802.1ad"):
		return errors.New("vlanProto: it needs a vlan that is not 0")
	case c.MinTxRate != nil && c.MaxTxRate != nil &&
		*c.MaxTxRate > 0 && *c.MinTxRate > *c.MaxTxRate:
		return fmt.Errorf("min_tx_rate: %d is more than the max_tx_rate of %d",
			*c.MinTxRate, *c.MaxTxRate)
	}
	return nil
}

// settings returns those of the VF.
func (c *conf) settings() Settings {
	s := Settings{MAC: c.MAC, VLAN: c.VLAN, Proto: strings.ToLower(c.VLANProto), Link: c.LinkState,
		MinRate: c.MinTxRate, MaxRate: c.MaxTxRate, Spoof: switched(c.SpoofChk),
		Trust: switched(c.Trust)}
	if c.VLANQoS != nil {
		s.QoS = *c.VLANQoS
	}
	return s
}

func switched(word string) *bool {
	if word == "" {
		return nil
	}
	on := word == "on"
	return &on
}

// delegates reports whether another plugin allocates the addresses.
func (c *conf) delegates() bool { return c.IPAM.Type != "" && c.IPAM.Type != ownIPAM }

var levels = map[string]slog.Level{"panic": slog.LevelError, "error": slog.LevelError,
	"warning": slog.LevelWarn, "debug": slog.LevelDebug}

// log returns what the plugin writes to: its standard error, which runtimes keep, or a file.
func (c *conf) log() *slog.Logger {
	out := io.Writer(os.Stderr)
	if c.LogFile != "" {
		f, err := os.OpenFile(c.LogFile, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			fmt.Fprintln(os.Stderr, "logFile:", err)
		} else {
			out = f // until the process ends
		}
	}
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: levels[c.LogLevel]}))
}
