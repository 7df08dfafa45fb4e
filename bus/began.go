package bus

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gatebus/gatebus/bus/disk"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// beganFile is, among the keys of a home, the first seal of its embedded log. It says
// that there was a log: without it who takes away the store with its checkpoints would
// make a home that looks new (decision 19). Who takes away the keys too has another
// home.
const beganFile = "log"

func (b *Bus) beganPath() string { return filepath.Join(b.opts.Home, "keys", beganFile) }

// noteBegun writes the first seal of the log where none is noted yet.
func (b *Bus) noteBegun(s seal) error {
	if _, err := os.Stat(b.beganPath()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := json.Marshal(s)
	if err == nil {
		err = disk.Create(b.beganPath(), append(text, '\n'))
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// checkNew refuses a home without checkpoints that has signed some.
func (b *Bus) checkNew(key sealKey) error {
	const op = "check store"
	if b.opts.External != nil { // the log is elsewhere
		return nil
	}
	text, err := os.ReadFile(b.beganPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.Wrap(op, fault.HomeNotWritable, redact.Static("the file keys/"+beganFile+" cannot be read"), err)
	}
	var s seal
	if json.Unmarshal(text, &s) != nil || !key.signed(s) {
		return fault.New(op, fault.AuditDamaged, redact.Static("the file keys/"+beganFile+" is not what this home signed"))
	}
	return fault.New(op, fault.AuditDamaged, redact.Static("this home has signed a log, and its checkpoints are gone: "+
		"restore a backup; or, if the log is to be another one from now on, move bus and keys/"+beganFile+" away"))
}
