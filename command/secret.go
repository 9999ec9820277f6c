package command

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// A secret never stands on a command line or in the environment, where other processes can read it.
// The flag --X-password-file names the file with the password for the server that --X names.

// withoutPassword returns the check of a flag that names a server.
func withoutPassword(flag string) func(where string) error {
	return func(where string) error {
		at, err := url.Parse(where)
		switch {
		case err != nil && strings.Contains(where, "@"): // whatever it is, it may have one in it
			return errors.New("it is not a URL that can be read")
		case err == nil && hasPassword(at):
			return fmt.Errorf("it has a password in it, which every user of this machine can read;"+
				" write it to a file and name that with --%s-password-file", flag)
		}
		return nil
	}
}

// withPassword returns the URL of a flag with the password from the file that its --…-password-file
// names.
func withPassword(flag, where, file string) (string, error) {
	if file == "" {
		return where, nil
	}
	at, err := url.Parse(where)
	if err != nil || at.Scheme == "" || !strings.Contains(where, "://") {
		return "", fmt.Errorf("--%s-password-file is for a URL, and --%s is none", flag, flag)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--%s-password-file: %w", flag, err)
	}
	password := strings.TrimRight(string(content), "\r\n")
	if password == "" {
		return "", fmt.Errorf("--%s-password-file: %s is empty", flag, file)
	}
	at.User = url.UserPassword(at.User.Username(), password)
	return at.String(), nil
}

func hasPassword(at *url.URL) bool {
	_, told := at.User.Password()
	return told
}
