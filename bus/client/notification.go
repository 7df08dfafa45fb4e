package client

// Message is the notification as JSON-RPC, the same on NATS and on /rpc/events.
func (n Notification) Message() []byte {
	b := make([]byte, 0, len(n.Method)+len(n.Params)+40)
	b = append(append(b, `{"jsonrpc":"2.0","method":"`...), n.Method...) // one of Topics
	return append(append(append(b, `","params":`...), n.Params...), '}')
}
