package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is what this program is built as.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// programVersion reads the version out of the program.
func programVersion() version {
	v := version{Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if s := info.Main.Version; s != "" && s != "(devel)" {
		v.Version = s
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Revision = s.Value
		}
	}
	return v
}

func (m *Main) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			v := programVersion()
			return m.printObject(v, v.Version, func(t *table) {
				t.block(fmt.Sprintf("gatebus %s (%s, %s/%s)", v.Version, v.Go, v.OS, v.Arch))
				t.field("revision", v.Revision)
			})
		},
	}
}
