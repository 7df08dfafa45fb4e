package secrets

import (
	"io/fs"
)

// noFollow is nothing: links are found by looking first.
const noFollow = 0

// modesCount says that permission bits mean nothing here.
const modesCount = false

func owned(fs.FileInfo) bool { return true }

func trusted(fs.FileInfo) bool { return true }
