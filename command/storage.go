package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/functions/inputs"
	"github.com/fastiov/fastiov/functions/storage"
)

// storageCmd serves what functions fetch and store. An invoker does so too, by --storage.
func storageCmd() *cobra.Command {
	var listen string
	cmd := &cobra.Command{Use: "storage DIR",
		Short: "Serve a directory to functions by HTTP: GET and PUT of /bucket/key, as in S3",
		Args:  cobra.ExactArgs(1)}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:3234",
		"where; whoever reaches this address may read and write all of DIR")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
		server, listener, err := openStorage(listen, "listen", args[0])
		if err != nil {
			return err
		}
		defer listener.Close()
		return serveUntil(cmd.Context(), []*http.Server{server}, []net.Listener{listener}, log)
	}
	cmd.AddCommand(samplesCmd())
	return cmd
}

// openStorage prepares to serve dir at an address that was given by a flag, for as long as the
// process lives.
func openStorage(address, flag, dir string) (*http.Server, net.Listener, error) {
	kept, err := storage.Open(dir, storage.MaxObject)
	if err != nil {
		return nil, nil, err
	}
	listener, err := openDoor(whatStorage, flag, address)
	if err != nil {
		kept.Close()
		return nil, nil, err
	}
	const transfer = 10 * time.Minute // of the largest object
	server := &http.Server{Handler: kept, ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout: transfer, WriteTimeout: 2 * transfer, IdleTimeout: 2 * time.Minute}
	return server, listener, nil
}

// samplesCmd makes the inputs of the sample functions.
func samplesCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "samples URL",
		Short: "Make what the sample functions work on, and put it into the storage server at URL",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			base, err := url.Parse(args[0])
			if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
				return fmt.Errorf(
					"%q is no URL of a storage server; it is like http://127.0.0.1:3234", args[0])
			}
			for _, key := range inputs.Keys {
				content := inputs.Make(key)
				if err := putObject(cmd.Context(), strings.TrimSuffix(args[0], "/")+"/"+
					key, content); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%9d bytes  %s\n", len(content), key)
			}
			return nil
		},
	}
}

func putObject(ctx context.Context, url string, content []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(content))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%w; start a storage server with `fastiov storage`", errors.Unwrap(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s: %s: %s", url, resp.Status, bytes.TrimSpace(why))
	}
	return nil
}

const whatStorage = "storage"

// serveStorage runs a storage server beside the process's other work. For an empty address it runs
// none.
func serveStorage(address, dir string, log *slog.Logger) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	server, listener, err := openStorage(address, "storage", dir)
	if err != nil {
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) &&
			!errors.Is(err, net.ErrClosed) {
			log.Error("storage", "err", err)
		}
	}()
	log.Info("storage ready", "address", listener.Addr())
	return func() { server.Close(); <-served }, nil
}
