package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/store"
)

// userCmd makes users and changes them. It speaks to the invoker that runs here, by a socket for
// root and a group. If none runs, it does the invoker's work itself.
func userCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "user", Short: "Create, list, block and delete those who may call"}
	create := userDoes("create NAME",
		"Create a subject with a namespace, and print its key, which is not shown again",
		cobra.ExactArgs(1))
	var wish access.Wish
	f := create.Flags()
	f.StringVar(&wish.Namespace, "namespace", "", "its namespace (default: called as the subject)")
	limits := limitFlags(f, access.Allowance{})
	revoke := f.Bool("revoke", false, "revoke the key that the subject has, and print another")
	create.does(func(ctx context.Context, cmd *cobra.Command, r *registerClient,
		args []string) error {
		wish.Subject, wish.Limits = args[0], limits()
		path := "/subjects"
		if *revoke {
			if len(wish.Limits) > 0 {
				return errors.New("--revoke changes no limits; `fastiov user limits set` does")
			}
			path = subjectPath(args[0]) + "/revoke"
		}
		var made struct {
			Key string `json:"key"`
		}
		err := r.ask(ctx, http.MethodPost, path, wish, &made)
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), made.Key)
		}
		return err
	})
	list := userDoes("list", "List the subjects, their namespaces and who is blocked", cobra.NoArgs)
	list.does(func(ctx context.Context, cmd *cobra.Command, r *registerClient, _ []string) error {
		var subjects []access.Subject
		if err := r.ask(ctx, http.MethodGet, "/subjects", nil, &subjects); err != nil {
			return err
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "SUBJECT\tNAMESPACE\tUUID\tSTATE")
		for _, s := range subjects {
			for _, n := range s.Namespaces {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Name, n.Name, n.UUID,
					map[bool]string{true: "blocked", false: "active"}[s.Blocked])
			}
		}
		return w.Flush()
	})
	get := userDoes("get NAME", "Show a subject as JSON", cobra.ExactArgs(1))
	get.does(func(ctx context.Context, cmd *cobra.Command, r *registerClient, args []string) error {
		var subject access.Subject
		err := r.ask(ctx, http.MethodGet, subjectPath(args[0]), nil, &subject)
		if err == nil {
			err = json.NewEncoder(cmd.OutOrStdout()).Encode(subject)
		}
		return err
	})
	cmd.AddCommand(create.Command, list.Command, get.Command, userDeletes(), userLimits())
	for _, c := range []struct{ use, short, method, path string }{
		{"block NAME", "Keep a subject out", http.MethodPost, "/block"},
		{"unblock NAME", "Let a subject in again", http.MethodPost, "/unblock"},
	} {
		u := userDoes(c.use, c.short, cobra.ExactArgs(1))
		u.does(func(ctx context.Context, _ *cobra.Command, r *registerClient, args []string) error {
			return r.ask(ctx, c.method, subjectPath(args[0])+c.path, nil, &struct{}{})
		})
		cmd.AddCommand(u.Command)
	}
	return cmd
}

// A userCommand is one that needs the register.
type userCommand struct {
	*cobra.Command
	runDir   string
	stateDir string
	store    storeFlags
}

func subjectPath(name string) string { return "/subjects/" + url.PathEscape(name) }

// limitFlags adds flags for the limits. The returned func returns those that were given. The help
// names the defaults if there are any; else the invoker's hold.
func limitFlags(f *pflag.FlagSet, defaults access.Allowance) func() access.Limits {
	type flag struct {
		name  string
		value *int
	}
	flags := map[string]flag{}
	begin, end := "how many ", " (default: as the invoker's)"
	if defaults != (access.Allowance{}) {
		begin, end = "of a namespace: how many ", ""
	}
	for _, limit := range access.Settable {
		standard := limit.Of(defaults)
		if standard == 0 && defaults != (access.Allowance{}) {
			continue // nobody has it unless it is set
		}
		name := strings.ToLower(capitals.ReplaceAllString(limit.Name, "-$0"))
		flags[limit.Name] = flag{name, f.Int(name, standard, begin+limit.What+end)}
	}
	return func() access.Limits {
		given := access.Limits{}
		for limit, flag := range flags {
			if f.Changed(flag.name) {
				given[limit] = *flag.value
			}
		}
		return given
	}
}

var capitals = regexp.MustCompile("[A-Z]+")

// userLimits is `fastiov user limits`.
func userLimits() *cobra.Command {
	cmd := &cobra.Command{Use: "limits", Short: "Show, set and delete the limits of a subject"}
	get := userDoes("get NAME", "Show the limits that were set", cobra.ExactArgs(1))
	get.does(func(ctx context.Context, cmd *cobra.Command, r *registerClient, args []string) error {
		var subject access.Subject
		if err := r.ask(ctx, http.MethodGet, subjectPath(args[0]), nil, &subject); err != nil {
			return err
		}
		if len(subject.Limits) == 0 {
			fmt.Fprintln(cmd.OutOrStdout(), "no limits are set: the invoker's hold")
			return nil
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(subject.Limits)
	})
	set := userDoes("set NAME", "Set limits, from now on; 0 allows none", cobra.ExactArgs(1))
	limits := limitFlags(set.Flags(), access.Allowance{})
	set.does(func(ctx context.Context, _ *cobra.Command, r *registerClient, args []string) error {
		given := limits()
		if len(given) == 0 {
			return errors.New("no limit is given; `fastiov user limits set --help` lists them")
		}
		return r.ask(ctx, http.MethodPost, subjectPath(args[0])+"/limits", given, &struct{}{})
	})
	remove := userDoes("delete NAME", "Have the invoker's limits hold again", cobra.ExactArgs(1))
	remove.does(func(ctx context.Context, _ *cobra.Command, r *registerClient,
		args []string) error {
		return r.ask(ctx, http.MethodDelete, subjectPath(args[0])+"/limits", nil, &struct{}{})
	})
	cmd.AddCommand(get.Command, set.Command, remove.Command)
	return cmd
}

// userDeletes is `fastiov user delete`.
func userDeletes() *cobra.Command {
	u := userDoes("delete NAME",
		"Delete a subject; what its namespaces hold stays, and nobody is given them, until"+
			" it is purged", cobra.ExactArgs(1))
	purge := u.Flags().Bool("purge", false,
		"delete what its namespaces hold as well, also of a subject that is deleted already: code, entities, records")
	u.does(func(ctx context.Context, cmd *cobra.Command, r *registerClient, args []string) error {
		subject := subjectPath(args[0])
		err := r.ask(ctx, http.MethodDelete, subject, nil, &struct{}{})
		var refused *refusedByRegister
		if !*purge ||
			err != nil && !(errors.As(err, &refused) && refused.status == http.StatusNotFound) {
			return err
		}
		return userPurges(ctx, cmd, r, subject)
	})
	return u.Command
}

// userPurges has the register purge, step by step, and says how far it is.
func userPurges(ctx context.Context, cmd *cobra.Command, r *registerClient, subject string) error {
	const pause = 200 * time.Millisecond // where there is nothing to do but to wait
	var entities, records int
	for said := ""; ; {
		var p access.Purge
		if err := r.ask(ctx, http.MethodPost, subject+"/purge", nil, &p); err != nil {
			return err
		}
		entities, records = entities+p.Entities, records+p.Records
		if p.Done {
			fmt.Fprintf(cmd.OutOrStdout(), "deleted %d entities and %d records\n", entities,
				records)
			return nil
		}
		say := fmt.Sprintf(
			"%s: deleted %d entities and %d records so far; %d calls or changes are under way",
			p.Namespace, entities, records, p.UnderWay)
		if say != said {
			fmt.Fprintln(cmd.ErrOrStderr(), say)
			said = say
		}
		if p.Entities+p.Records == 0 {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func userDoes(use, short string, args cobra.PositionalArgs) *userCommand {
	u := &userCommand{Command: &cobra.Command{Use: use, Short: short, Args: args}}
	settings.Add(u.Command, nodeSection, func(f *pflag.FlagSet) {
		runDirFlag(f, &u.runDir)
		f.StringVar(&u.stateDir, "state-dir", usualStateDir, "where the invoker keeps its store")
	})
	settings.Add(u.Command, invokerSection, u.store.flags)
	return u
}

func (u *userCommand) does(run func(ctx context.Context, cmd *cobra.Command, r *registerClient,
	args []string) error) {
	u.RunE = func(cmd *cobra.Command, args []string) error {
		here := false // a user who names one means this machine
		for _, name := range []string{"run-dir", "state-dir", "store"} {
			here = here || cmd.Flags().Changed(name)
		}
		if !here {
			if away, err := inTestbed(cmd.Context(), u.runDir); away {
				return err
			}
		}
		socket := filepath.Join(u.runDir, invokerSocket)
		if conn, err := net.Dial("unix", socket); err == nil {
			conn.Close()
			return run(cmd.Context(), cmd, newRegisterClient(socket), args)
		} else if errors.Is(err, os.ErrPermission) {
			return notOfGroup(socket)
		}
		return u.withStore(cmd.Context(), func(socket string) error {
			return run(cmd.Context(), cmd, newRegisterClient(socket), args)
		})
	}
}

// withStore serves the register from the store itself, for as long as do takes.
func (u *userCommand) withStore(ctx context.Context, do func(socket string) error) (err error) {
	if u.store.where == "" {
		if err := becomeOwner(u.stateDir); err != nil {
			return err
		}
	}
	kept, err := u.store.open(ctx, u.stateDir, slog.New(slog.DiscardHandler))
	if err != nil {
		return fmt.Errorf("no invoker runs here, and its store: %w", err)
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	directory := access.NewDirectory(access.Limits{})
	var unread error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := kept.Watch(ctx, func(doc store.Doc) {
		unread = errors.Join(unread, directory.See(doc))
	}); err != nil || unread != nil {
		return errors.Join(err, unread)
	}
	dir, err := os.MkdirTemp("", "fastiov-user-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	listener, err := listenLocal(filepath.Join(dir, invokerSocket), nobodyElse)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: &access.Register{Store: kept, Directory: directory},
		ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	err = do(listener.Addr().String())
	server.Close()
	<-served
	return err
}
