package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal: what a person types into person, the program
// reads from tty.
func terminal(t *testing.T) (person, tty *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return person, tty
}

// echoes waits until the terminal echoes, or does so no more.
func echoes(t *testing.T, tty *os.File, want bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		s, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		if s.Lflag&unix.ECHO != 0 == want {
			return
		}
	}
	t.Fatalf("the echo never becomes %v", want)
}

// A person types a secret without seeing it.
func TestSecretIsTypedWithoutEcho(t *testing.T) {
	t.Parallel()
	const secret = "hunter2 hunter2"
	person, tty := terminal(t)
	var stderr bytes.Buffer
	m := &Main{Stdin: tty, Stderr: &stderr}
	type answer struct {
		value string
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := m.readSecret(t.Context(), "value of x", "")
		answers <- answer{value, err}
	}()
	echoes(t, tty, false)
	if _, err := person.WriteString(secret + "\n"); err != nil {
		t.Fatal(err)
	}
	if a := <-answers; a.value != secret || a.err != nil {
		t.Errorf("got %q, %v", a.value, a.err)
	}
	echoes(t, tty, true)
	if _, err := tty.WriteString("end"); err != nil {
		t.Fatal(err)
	}
	shown := make([]byte, 4096)
	var screen strings.Builder
	for !strings.Contains(screen.String(), "end") {
		n, err := person.Read(shown)
		if err != nil {
			t.Fatal(err)
		}
		screen.Write(shown[:n])
	}
	if strings.Contains(screen.String(), "hunter") || stderr.String() != "value of x: \n" {
		t.Errorf("the screen shows %q, stderr %q", screen.String(), stderr.String())
	}
}

// Who interrupts the prompt has his echo back.
func TestInterruptedPromptGivesTheEchoBack(t *testing.T) {
	t.Parallel()
	_, tty := terminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	m := &Main{Stdin: tty, Stderr: &bytes.Buffer{}}
	ended := make(chan error, 1)
	go func() {
		_, err := m.readSecret(ctx, "value of x", "")
		ended <- err
	}()
	echoes(t, tty, false)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
	echoes(t, tty, true)
}
