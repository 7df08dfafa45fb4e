//go:build !unix

package stdio

import "os"

// writeNow writes what goes into a pipe without waiting. Nobody knows here.
func writeNow(*os.File, []byte) (int, error) { return 0, nil }
