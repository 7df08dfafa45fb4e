package stdio

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
	"github.com/gatebus/gatebus/workers/frame"
)

const (
	// closeGrace is how long a server may take to leave by itself once its
	// input has ended, and termGrace how long after SIGTERM (R80).
	closeGrace = 3 * time.Second
	termGrace  = 2 * time.Second
	// killGrace bounds the wait for the kernel to bury a killed process.
	killGrace = 2 * time.Second
	// drain is how long its output may stay open after the end of the process:
	// a grandchild that left the process group can hold it for ever.
	drain = 2 * time.Second
	// writeStall is how long a server may leave one chunk of input unread.
	writeStall = 10 * time.Second
	// writeChunk is what must go through within writeStall.
	writeChunk = 64 << 10
)

// ErrClosed says that the process takes no more input: it has ended, is being
// closed, or left its input unread for too long.
var ErrClosed = errors.New("stdio: the process takes no more input")

// Spec says how to start a server.
type Spec struct {
	// Command is a program name, looked up in the PATH of Env, or a path;
	// a relative one is taken from Dir.
	Command string
	// Digest is the SHA-256 of the only program that may be started, hex; empty: any.
	Digest string
	// Args are the arguments after the program.
	Args []string
	// Env is the whole environment as KEY=value. Nothing is added to it and
	// nothing inherited, also when it is nil (R75).
	Env []string
	// Dir is the working directory.
	Dir string
	// Home and Tmp are directories of the server, made with mode 0700 when
	// they are not there; empty: none (R76, decision 25). Env names them.
	Home, Tmp string
	// MaxFrame is the longest frame accepted, in bytes; 0: [frame.DefaultMax].
	MaxFrame int
	// Found is told of the program before it is started or refused: the file, symlinks
	// resolved, and the SHA-256 of its contents. nil: nobody wants to know.
	Found func(program, digest string)
}

// Process is a running server. Its methods are safe for concurrent use; Read
// has one caller at a time.
type Process struct {
	// Program is the file that was started, symlinks resolved.
	Program string
	// ProgramDigest is the SHA-256 of its contents, hex.
	ProgramDigest string

	cmd    *exec.Cmd
	stdin  *os.File // written by who has the turn
	stdout *os.File // read by the caller of Read
	stderr *capture
	framer *framer
	// Limits of this process; the constants, but in tests.
	grace, term, stall time.Duration

	turn    chan struct{} // capacity 1, full while a frame is being written
	writes  chan write    // what did not go out at once, for the write goroutine
	closing chan struct{} // closed once no write is accepted any more
	closed  sync.Once     // guards closing
	done    chan struct{} // closed by the wait goroutine, last
	exit    string        // set before done

	mu     sync.Mutex
	reaped bool // the number of the process may belong to another one now
}

type write struct {
	frame []byte
	done  chan written // capacity 1
}

type written struct {
	n   int
	err error
}

// Start starts the server of spec in a process group of its own. It runs until
// it ends by itself or [Process.Close]; ctx bounds only the start.
//
// Errors are that of ctx and faults of kind spawn_failed or program_changed, whose text
// never holds the command line.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, err := prepare(spec)
	if err != nil {
		return nil, err
	}
	p.run()
	return p, nil
}

// prepare starts the program of spec, but not the goroutines.
func prepare(spec Spec) (*Process, error) {
	path, err := lookPath(spec)
	if err != nil {
		return nil, spawnFailed(redact.Static("the program is not in the PATH of the server, or cannot be executed"), err)
	}
	program, digest, err := identify(path)
	if err != nil {
		return nil, spawnFailed(redact.Static("the program cannot be read"), err)
	}
	if spec.Found != nil {
		spec.Found(program, digest)
	}
	if spec.Digest != "" && spec.Digest != digest {
		return nil, fault.New("stdio.start", fault.ProgramChanged, redact.Static("the file of the program has changed since it was approved"))
	}
	for _, dir := range []string{spec.Home, spec.Tmp} {
		if err := private(dir); err != nil {
			return nil, spawnFailed(redact.Static("a directory of the server cannot be made private"), err)
		}
	}
	childIn, stdin, err := os.Pipe()
	if err != nil {
		return nil, spawnFailed(redact.Static("no pipe for the input"), err)
	}
	defer childIn.Close()
	stdout, childOut, err := os.Pipe()
	if err != nil {
		_ = stdin.Close()
		return nil, spawnFailed(redact.Static("no pipe for the output"), err)
	}
	defer childOut.Close()
	stderr, childErr, err := newCapture()
	if err != nil {
		_ = stdin.Close()
		_ = stdout.Close()
		return nil, spawnFailed(redact.Static("no file for the standard error"), err)
	}
	defer childErr.Close()

	cmd := &exec.Cmd{
		Path: path,
		Args: append([]string{path}, spec.Args...),
		// Never nil: exec gives a nil environment all of ours.
		Env: append([]string{}, spec.Env...),
		Dir: spec.Dir,
		// Files and no io.Reader or io.Writer: exec starts no copying
		// goroutines then, so Wait cannot hang on a grandchild that holds them.
		Stdin:       childIn,
		Stdout:      childOut,
		Stderr:      childErr,
		SysProcAttr: ownGroup(),
	}
	if err := born(cmd, spec.Home); err != nil {
		_ = stdin.Close()
		_ = stdout.Close()
		stderr.close()
		return nil, spawnFailed(redact.Static("the program could not be started"), err)
	}
	max := spec.MaxFrame
	if max <= 0 {
		max = frame.DefaultMax
	}
	return &Process{
		Program:       program,
		ProgramDigest: digest,
		cmd:           cmd,
		stdin:         stdin,
		stdout:        stdout,
		stderr:        stderr,
		framer:        newFramer(stdout, max),
		grace:         closeGrace,
		term:          termGrace,
		stall:         writeStall,
		turn:          make(chan struct{}, 1),
		writes:        make(chan write),
		closing:       make(chan struct{}),
		done:          make(chan struct{}),
	}, nil
}

// run starts the goroutines of p; done follows their end.
func (p *Process) run() {
	writer := make(chan struct{})
	go p.stderr.drain()
	go func() {
		p.write()
		close(writer)
	}()
	go func() {
		p.wait()
		<-writer
		close(p.done)
	}()
}

func spawnFailed(text redact.EventText, cause error) error {
	return fault.Wrap("stdio.start", fault.SpawnFailed, text, cause)
}

// Read returns the next frame of the server, in memory of its own. Its error
// is final: io.EOF at the end of the output, a fault of kind frame_too_large,
// or of initialize_failed when the server uses another framing.
func (p *Process) Read() (frame.Frame, error) {
	read, err := p.framer.next()
	if err != nil {
		_ = p.stdout.Close()
	}
	return read, err
}

// Dropped returns how many lines of the server were no frames.
func (p *Process) Dropped() uint64 { return p.framer.dropped.Load() }

// Write sends one frame, given without line feed; the caller leaves its memory
// alone afterwards. Frames are written in the order in which they are taken.
//
// It returns when the frame is in the pipe, when ctx ends, or with ErrClosed.
// With an error, sent tells whether the server may have got a part of it. A
// frame once begun is written whole whatever becomes of ctx, for half of one
// would spoil the next. A server that leaves its input unread for ten seconds
// is killed, so that no write and no caller waits for ever.
func (p *Process) Write(ctx context.Context, frame []byte) (sent bool, err error) {
	if bytes.IndexByte(frame, '\n') >= 0 {
		return false, errors.New("stdio: a frame holds a line feed")
	}
	// Of several ready cases select takes any: what has ended stays unsent.
	if err := ctx.Err(); err != nil {
		return false, err
	}
	frame = append(frame, '\n')
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	case <-p.closing:
		return false, ErrClosed
	}
	select {
	case <-p.closing:
		<-p.turn
		return false, ErrClosed
	default:
	}
	// A server that reads has room in the pipe: nobody else has to be woken then.
	n, err := writeNow(p.stdin, frame)
	if n == len(frame) || err != nil {
		if err != nil {
			err = p.lost()
		}
		<-p.turn
		return n > 0, err
	}
	w := write{frame[n:], make(chan written, 1)}
	select {
	case p.writes <- w: // which gives the turn back
	case <-p.closing:
		<-p.turn
		return n > 0, ErrClosed
	}
	select {
	case r := <-w.done:
		return n+r.n > 0, r.err
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// lost ends a process whose input broke, unless it is being closed.
func (p *Process) lost() error {
	select {
	case <-p.closing: // Close gives it time
	default:
		p.Kill() // it has ended, or reads no more and is of no use
	}
	return ErrClosed
}

// write writes what did not go out at once.
func (p *Process) write() {
	watchdog := time.AfterFunc(p.stall, p.Kill)
	watchdog.Stop()
	for {
		select {
		case w := <-p.writes:
			n, err := 0, error(nil)
			for n < len(w.frame) && err == nil {
				var m int
				watchdog.Reset(p.stall)
				m, err = p.stdin.Write(w.frame[n:min(n+writeChunk, len(w.frame))])
				watchdog.Stop()
				n += m
			}
			if err != nil {
				err = p.lost()
			}
			<-p.turn
			w.done <- written{n, err}
		case <-p.closing:
			return
		}
	}
}

// endInput ends the input of the server. A write that is under way fails.
func (p *Process) endInput() {
	p.closed.Do(func() {
		close(p.closing)
		_ = p.stdin.Close()
	})
}

// wait buries the process and what is left of its group.
func (p *Process) wait() {
	if !awaitExit(p.cmd.Process.Pid) {
		_ = p.cmd.Wait()
	}
	p.mu.Lock()
	killGroup(p.cmd.Process)
	_ = p.cmd.Wait() // a second one changes nothing
	p.reaped = true
	p.exit = p.cmd.ProcessState.String()
	p.mu.Unlock()
	buried(p.cmd.Process.Pid)
	p.endInput()
	time.AfterFunc(drain, func() {
		_ = p.stdout.Close()
		_ = p.stderr.from.Close()
	})
}

// Done is closed when the process has ended, with its group. Frames that it
// wrote before can still be read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit says how the process ended, such as "exit status 1" or "signal: killed";
// it is empty before Done.
func (p *Process) Exit() string {
	select {
	case <-p.done:
		return p.exit
	default:
		return ""
	}
}

// Kill ends the process group at once.
func (p *Process) Kill() {
	p.signal(killGroup)
	p.endInput()
}

// Close ends the server: the end of its input, three seconds, SIGTERM to the
// process group, two seconds, SIGKILL (R80). Children of the server die with
// it, unless they left the group. When ctx ends, the rest goes without waiting.
//
// It may be called more than once and concurrently. The error is that of a
// process that even SIGKILL did not end within two seconds.
func (p *Process) Close(ctx context.Context) error {
	p.endInput()
	if p.ended(ctx, p.grace) {
		return nil
	}
	p.signal(terminateGroup)
	if p.ended(ctx, p.term) {
		return nil
	}
	p.signal(killGroup)
	if p.ended(context.Background(), killGrace) {
		return nil
	}
	return errors.New("stdio: the process does not end")
}

// ended waits for the end of the process.
func (p *Process) ended(ctx context.Context, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (p *Process) signal(send func(*os.Process)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		send(p.cmd.Process)
	}
}
