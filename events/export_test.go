package events

import "flag"

// Update rewrites the golden files of this package's tests from what the
// program does now. Read the difference before committing it.
var Update = flag.Bool("update", false, "rewrite golden files")
