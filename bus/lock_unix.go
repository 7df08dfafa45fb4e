//go:build unix

package bus

import "os"

// ownerOnly reports whether nobody but the owner may read the file.
func ownerOnly(info os.FileInfo) bool { return info.Mode().Perm()&0o077 == 0 }

// syncRead makes durable what others wrote to a file that is open for reading.
func syncRead(f *os.File) error { return f.Sync() }
