package command

import (
	"fmt"
	"net/url"
	"os"
	"strings"
)

// A secret never stands on a command line or in the environment, where other processes can read it.
// The flag --X-password-file names the file with the password for the server that --X names.

// withPassword returns the URL of a flag with the password from the file that its --…-password-file
// names.
func withPassword(flag, where, file string) (string, error) {
	at, err := url.Parse(where)
	isURL := err == nil && at.Scheme != "" && strings.Contains(where, "://")
	switch {
	case err != nil && strings.Contains(where, "@"): // whatever it is, it may have a password in it
		return "", fmt.Errorf("--%s is not a URL that can be read", flag)
	case isURL && hasPassword(at):
		return "", fmt.Errorf(
			"--%s has a password in it, which every user of this machine can read;"+
				" write it to a file and name that with --%s-password-file", flag, flag)
	case file == "":
		return where, nil
	case !isURL:
		return "", fmt.Errorf("--%s-password-file is for a URL, and --%s is %q", flag, flag, where)
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
