//go:build !race

package main

// underRace says that the race detector is in the program.
const underRace = false
