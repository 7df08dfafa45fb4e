package disk_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gatebus/gatebus/bus/disk"
)

func TestALockIsHeldByManyOrByOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	one, two, three := open(), open(), open()
	for _, f := range []*os.File{one, two} {
		if err := disk.TryLock(f, disk.Shared); err != nil {
			t.Fatal(err)
		}
	}
	if err := disk.TryLock(three, disk.Alone); !errors.Is(err, disk.ErrHeld) {
		t.Errorf("alone beside two: %v", err)
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if err := disk.Lock(late, three, disk.Alone); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for longer than the context: %v", err)
	}
	took := make(chan error, 1)
	go func() { took <- disk.Lock(t.Context(), three, disk.Alone) }()
	for _, f := range []*os.File{one, two} {
		if err := disk.Unlock(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-took; err != nil {
		t.Fatal(err)
	}
	if err := disk.TryLock(one, disk.Shared); !errors.Is(err, disk.ErrHeld) {
		t.Errorf("shared beside one that is alone: %v", err)
	}
}

func TestAFileIsReplacedAsAWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	want := func(text string) {
		t.Helper()
		data, err := os.ReadFile(path)
		info, e := os.Stat(path)
		if err := errors.Join(err, e); err != nil || string(data) != text || runtime.GOOS != "windows" && info.Mode() != 0o600 {
			t.Fatalf("%q, %v, %v", data, info.Mode(), err)
		}
	}
	if err := disk.Create(path, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := disk.Create(path, []byte("two")); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("made twice: %v", err)
	}
	want("one")
	if err := disk.Replace(path, []byte("three")); err != nil {
		t.Fatal(err)
	}
	want("three")
	if left, err := filepath.Glob(filepath.Join(dir, disk.Pattern)); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
