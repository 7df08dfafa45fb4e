package bus

import (
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/gatebus/gatebus/bus/client"
	"github.com/gatebus/gatebus/events/fault"
	"github.com/gatebus/gatebus/events/redact"
)

// Notify sends a notification to a principal of a workspace: to whoever listens
// at this moment. Its body is that of /rpc/events; the headers Gb-Seq and
// Gb-Index are its place in the log.
func (b *Bus) Notify(workspace, principal string, n client.Notification) error {
	err := b.nc.PublishMsg(&nats.Msg{
		Subject: notificationSubject(workspace, principal, n.Method),
		Header:  nats.Header{"Gb-Seq": {strconv.FormatUint(n.Seq, 10)}, "Gb-Index": {strconv.Itoa(n.I)}},
		Data:    n.Message(),
	})
	if err != nil {
		return fault.Wrap("notify", fault.BusUnavailable, redact.Static("the notification cannot be sent"), err)
	}
	return nil
}
