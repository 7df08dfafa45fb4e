package secrets

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/zalando/go-keyring"

	"github.com/gatebus/gatebus/events/redact"
)

// Keyring is what is used of the keyring of a system. Its errors are those of
// go-keyring: ErrNotFound, ErrSetDataTooBig, and others without a type. A method
// may take for ever.
type Keyring interface {
	Get(service, user string) (string, error)
	Set(service, user, secret string) error
	Delete(service, user string) error
}

// service is what the items of a keyring are called by.
const service = "gatebus"

// system is the keyring of the operating system.
type system struct{}

func (system) Get(service, user string) (string, error) { return keyring.Get(service, user) }
func (system) Set(service, user, secret string) error   { return keyring.Set(service, user, secret) }
func (system) Delete(service, user string) error        { return keyring.Delete(service, user) }

// System is the keyring of the operating system, nil where there is no session
// bus to ask: go-keyring would start one, and a keyring with it, and leave both
// behind. The lookup is that of the environment.
func System(lookup func(string) (string, bool)) Keyring {
	switch runtime.GOOS {
	case "darwin", "windows":
		return system{}
	}
	if address, _ := lookup("DBUS_SESSION_BUS_ADDRESS"); address != "" {
		if strings.HasPrefix(address, "autolaunch:") {
			return nil
		}
		return system{}
	}
	// Where the bus of a login is, for who has no address.
	info, err := os.Stat("/run/user/" + strconv.Itoa(os.Getuid()) + "/bus")
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return nil
	}
	return system{}
}

// ring is a keyring with a deadline. One question at a time is open: one that is
// not answered makes the next ones late, and leaves no more than itself behind.
type ring struct {
	of       Keyring
	patience time.Duration
	busy     chan struct{}
}

// errSlow is the answer of a keyring that has none in time.
var errSlow = errors.New("no answer in time")

// do runs a question. Its context ends when nobody waits for it any more.
func (r *ring) do(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	select {
	case r.busy <- struct{}{}:
	case <-ctx.Done():
		return errSlow
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-r.busy }()
		done <- ask(ctx)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errSlow
	}
}

// errOther says that a keyring does not keep what it is given.
var errOther = errors.New("another value came back")

// probe tries whether a keyring keeps a value as long as a key, and takes it out
// again.
func (r *ring) probe(ctx context.Context) error {
	return r.do(ctx, func(context.Context) error {
		user := "probe " + rand.Text()
		value := strings.Repeat("x", keyLength)
		if err := r.of.Set(service, user, value); err != nil {
			return err
		}
		got, err := r.of.Get(service, user)
		if err == nil && got != value {
			err = errOther
		}
		return errors.Join(err, r.of.Delete(service, user))
	})
}

// get is the value of an account, and whether there is one.
func (r *ring) get(ctx context.Context, account string) (value string, found bool, err error) {
	var got string // written by one that may be late
	err = r.do(ctx, func(context.Context) (err error) {
		got, err = r.of.Get(service, account)
		return err
	})
	if errors.Is(err, keyring.ErrNotFound) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	return got, true, nil
}

// set stores a value and reads it back. One that nobody waits for any more is
// taken out again.
func (r *ring) set(ctx context.Context, account, value string) error {
	return r.do(ctx, func(ctx context.Context) error {
		if err := r.of.Set(service, account, value); err != nil {
			return err
		}
		got, err := r.of.Get(service, account)
		if err == nil && got != value {
			err = errOther
		}
		if ctx.Err() != nil {
			_ = r.of.Delete(service, account) // an item that no keystore names
		}
		return err
	})
}

// why says what is wrong with a keyring, without what it says itself.
func why(err error) redact.EventText {
	text := err.Error()
	_, noTool := errors.AsType[*exec.Error](err)
	_, noBus := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, errSlow):
		return redact.Static("the keyring of the system does not answer in time")
	case errors.Is(err, keyring.ErrSetDataTooBig):
		return redact.Static("the keyring of the system takes no value as long as a key")
	case errors.Is(err, errOther):
		return redact.Static("the keyring of the system gives back another value than it was given")
	case noTool, noBus, errors.Is(err, keyring.ErrUnsupportedPlatform), strings.Contains(text, "not provided by any"):
		return redact.Static("the system has no keyring that answers")
	case strings.Contains(text, "unlock"), strings.Contains(text, "locked"):
		return redact.Static("the keyring of the system is locked")
	}
	return redact.Static("the keyring of the system fails")
}
