//go:build unix

package cluster

import "syscall"

// Stop freezes a server, and Continue lets it go on.
func (c *Cluster) Stop(i int)     { c.signal(i, syscall.SIGSTOP) }
func (c *Cluster) Continue(i int) { c.signal(i, syscall.SIGCONT) }

func (c *Cluster) signal(i int, s syscall.Signal) {
	c.t.Helper()
	if err := c.nodes[i].Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}
