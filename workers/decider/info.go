package decider

import (
	"context"
	"encoding/json"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gatebus/gatebus/bus"
	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

const (
	// verbInfo asks the address of a home what bus/info says.
	verbInfo = "info"
	// infoPatience bounds the wait for the runtime of the home.
	infoPatience = 2 * time.Second
)

// busInfo is about the runtime of the home, whichever of its processes is asked. A
// worker is asked in vain only while no such runtime lives, and speaks of itself then.
func (d *Decider) busInfo(ctx context.Context, id client.Identity, r *bus.Request) (any, error) {
	var p struct{}
	if err := r.Decode(&p); err != nil {
		return nil, err
	}
	if d.Cores.Follows() {
		if said := d.askHome(ctx); said != nil {
			return said, nil
		}
	}
	return d.info(ctx)
}

// askHome is what the runtime of the home says of itself; nil where there is none.
func (d *Decider) askHome(ctx context.Context) (said jsontext.Value) {
	ctx, cancel := context.WithTimeout(ctx, infoPatience)
	defer cancel()
	err := d.Bus.AskAddress(ctx, d.Workspace, d.Home, verbInfo, nil, func(data []byte) error {
		said = jsontext.Value(data)
		return nil
	})
	if err != nil {
		return nil
	}
	return said
}

// speakForHome answers at the address of the home, which the lock of the home gives
// to one process at a time, until stop.
func (d *Decider) speakForHome() (stop func(), err error) {
	return d.Bus.ServeAddress(d.Workspace, d.Home, func(ctx context.Context, verb string, _ []byte, reply func([]byte) error) error {
		if verb != verbInfo {
			return fault.New("bus.info", fault.UnknownMethod, redact.Name("no verb of a home: "+verb))
		}
		info, err := d.info(ctx)
		if err != nil {
			return err
		}
		data, err := json.Marshal(info)
		if err != nil {
			return err
		}
		return reply(data)
	})
}

// info is what this process says of itself and of what it has.
func (d *Decider) info(ctx context.Context) (client.BusInfo, error) {
	if err := d.caught(ctx); err != nil {
		return client.BusInfo{}, err
	}
	info := d.Info()
	info.Commits = d.Bus.Head()
	info.Events = d.Projections.Status().Events
	size, err := d.Bus.Size(ctx)
	if err != nil {
		return client.BusInfo{}, err
	}
	info.Bytes = size
	info.Log = "ok"
	switch {
	case d.Bus.Damage() != nil:
		info.Log = "damaged"
	case d.Bus.LogErr() != nil:
		info.Log = "unavailable"
	}
	for _, c := range d.Projections.Servers.Cores(d.Workspace) {
		info.Cores = append(info.Cores, client.Core{ID: c.ID, Revision: c.Revision, Failed: c.Failed != ""})
	}
	info.Servers = len(d.Projections.Servers.List(d.Workspace, ""))
	info.Pending = len(d.Projections.Approvals.Pending(d.Workspace))
	return info, nil
}
