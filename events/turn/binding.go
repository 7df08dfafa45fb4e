package turn

// Binding fixes one visible name of a turn to one tool of one opening of one
// connection (R144). A turn's bindings are a blob; what they rest on is checked
// again at each call (R146, R197).
type Binding struct {
	Name       string `json:"name"`
	Server     string `json:"server"`
	Tool       string `json:"tool"`
	Connection string `json:"connection"`
	// Fingerprint is the server's declaration, Definition the SHA-256 of the
	// tool's canonical definition.
	Fingerprint string `json:"fingerprint"`
	Definition  string `json:"definition"`
	// Catalog is the version of the discovery, Generation the opening.
	Catalog    string `json:"catalog_version"`
	Generation uint32 `json:"generation"`
	Capability string `json:"capability"`
	Risk       string `json:"risk"`
	// Policy is the declared approval policy.
	Policy    string `json:"policy"`
	TimeoutMS int64  `json:"timeout_ms"`
	// Reason is implicit_policy, explicit_server or explicit_tool (R202).
	Reason string `json:"selection_reason"`
}

// Bindings is the content of a turn's blob, sorted by name.
type Bindings struct {
	Tools []Binding `json:"tools"`
	// Servers are for what is asked of a server beside its tools; their name is the
	// server and their tool is empty.
	Servers []Binding `json:"servers,omitempty"`
}
