package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

var update = flag.Bool("update", false, "write what was added to the baseline")

const (
	root = "../../.."
	// baselineFile is the descriptor set of the contract as it was last agreed on.
	baselineFile = root + "/schemas/baseline.binpb"
)

// contract is our own files, without comments.
func contract(t *testing.T) *descriptorpb.FileDescriptorSet {
	t.Helper()
	req, err := sources(root)
	if err != nil {
		t.Fatal(err)
	}
	set := &descriptorpb.FileDescriptorSet{}
	for _, f := range req.ProtoFile {
		if f.GetPackage() == "gatebus.v1" {
			f.SourceCodeInfo = nil
			set.File = append(set.File, f)
		}
	}
	slices.SortFunc(set.File, func(a, b *descriptorpb.FileDescriptorProto) int { return strings.Compare(a.GetName(), b.GetName()) })
	return set
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// messages are all messages of a set by name.
func messages(set *descriptorpb.FileDescriptorSet) map[string]*descriptorpb.DescriptorProto {
	out := map[string]*descriptorpb.DescriptorProto{}
	for _, f := range set.File {
		for _, m := range f.MessageType {
			out[f.GetPackage()+"."+m.GetName()] = m
		}
	}
	return out
}

// breaking is what of old does not hold any more in now: every log that exists
// holds messages of old.
func breaking(old, now *descriptorpb.FileDescriptorSet) []string {
	var out []string
	report := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	after := messages(now)
	before := messages(old)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		m := before[name]
		n := after[name]
		if n == nil {
			report("message %s is gone", name)
			continue
		}
		was, wasEvent := eventIn(m.GetOptions())
		is, isEvent := eventIn(n.GetOptions())
		if wasEvent != isEvent || was.version != is.version {
			report("%s was version %d of an event and is version %d", name, was.version, is.version)
		}
		for _, k := range was.kinds {
			if !slices.Contains(is.kinds, k) {
				report("%s is no event of a %s any more", name, k)
			}
		}
		for _, f := range m.Field {
			i := slices.IndexFunc(n.Field, func(g *descriptorpb.FieldDescriptorProto) bool { return g.GetNumber() == f.GetNumber() })
			if i < 0 {
				report("field %d %s of %s is gone", f.GetNumber(), f.GetName(), name)
				continue
			}
			g := n.Field[i]
			switch {
			case g.GetName() != f.GetName():
				report("number %d of %s was %s and is %s", f.GetNumber(), name, f.GetName(), g.GetName())
			case g.GetType() != f.GetType() || g.GetTypeName() != f.GetTypeName() || g.GetLabel() != f.GetLabel():
				report("the type of %s of %s changed", f.GetName(), name)
			case g.OneofIndex != nil || g.GetProto3Optional():
				report("%s of %s became optional or part of a oneof", f.GetName(), name)
			case !proto.Equal(f.GetOptions(), g.GetOptions()):
				report("the options of %s of %s changed", f.GetName(), name)
			}
		}
	}
	return out
}

func TestTheContractOnlyGrows(t *testing.T) {
	now := contract(t)
	raw, err := os.ReadFile(baselineFile)
	if err != nil && !(*update && errors.Is(err, fs.ErrNotExist)) {
		t.Fatal(err)
	}
	old := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(raw, old); err != nil {
		t.Fatal(err)
	}
	for _, b := range breaking(old, now) {
		t.Error(b)
	}
	if t.Failed() {
		return
	}
	current := marshal(t, now)
	if *update {
		if err := os.WriteFile(baselineFile, current, 0o644); err != nil {
			t.Fatal(err)
		}
		raw = current
	}
	if !bytes.Equal(raw, current) {
		t.Error("the contract has grown beyond its baseline: go test ./generate -update")
	}
}

// The check above would pass for ever if it saw nothing.
func TestBreakingChangesAreSeen(t *testing.T) {
	base := contract(t)
	const name = "gatebus.v1.CallStarted"
	for want, change := range map[string]func(*descriptorpb.DescriptorProto){
		"message gatebus.v1.CallStarted is gone": func(m *descriptorpb.DescriptorProto) { m.Name = proto.String("CallBegun") },
		"field 1 runtime of " + name + " is gone": func(m *descriptorpb.DescriptorProto) {
			m.Field[0].Number = proto.Int32(9)
		},
		"field 4 timeout_ms of " + name + " is gone": func(m *descriptorpb.DescriptorProto) { m.Field = m.Field[:3] },
		"number 1 of " + name + " was runtime and is process": func(m *descriptorpb.DescriptorProto) {
			m.Field[0].Name = proto.String("process")
		},
		"the type of runtime of " + name + " changed": func(m *descriptorpb.DescriptorProto) {
			m.Field[0].Type = descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum()
		},
		"the type of generation of " + name + " changed": func(m *descriptorpb.DescriptorProto) {
			m.Field[2].Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		},
		"runtime of " + name + " became optional or part of a oneof": func(m *descriptorpb.DescriptorProto) {
			m.Field[0].Proto3Optional = proto.Bool(true)
		},
		"the options of runtime of " + name + " changed": func(m *descriptorpb.DescriptorProto) {
			m.Field[0].Options = &descriptorpb.FieldOptions{Deprecated: proto.Bool(true)}
		},
		name + " is no event of a call any more": func(m *descriptorpb.DescriptorProto) {
			m.Options = messages(base)["gatebus.v1.TurnEnded"].Options
		},
	} {
		now := proto.CloneOf(base)
		change(messages(now)[name])
		if got := breaking(base, now); !slices.Equal(got, []string{want}) {
			t.Errorf("breaking changes %q, want %q", got, want)
		}
	}
	grown := proto.CloneOf(base)
	m := messages(grown)[name]
	m.Field = append(m.Field, &descriptorpb.FieldDescriptorProto{Name: proto.String("more"), Number: proto.Int32(50)})
	m.Options = messages(base)["gatebus.v1.ApprovalDecided"].Options // of calls and connections
	if got := breaking(base, grown); len(got) > 0 {
		t.Errorf("a new field or kind is a breaking change: %q", got)
	}
}

// What the tables and the schemas show comes from here.
func TestEveryEventIsDescribed(t *testing.T) {
	req, err := sources(root)
	if err != nil {
		t.Fatal(err)
	}
	plugin, err := protogen.Options{}.New(req)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{
		"host": true, "grant": true, "policy": true, "core": true, "server": true, "session": true, "connection": true,
		"turn": true, "call": true, "review": true, "runtime": true,
	}
	// Text that comes from outside has passed the redactor (R204).
	text := map[string]bool{"message": true, "note": true, "preview": true, "result": true, "arguments": true}
	names := map[string]string{}
	for _, f := range plugin.Files {
		if !f.Generate {
			continue
		}
		for _, m := range f.Messages {
			name := string(m.Desc.FullName())
			if !strings.HasPrefix(strings.TrimSpace(string(m.Comments.Leading)), m.GoIdent.GoName) {
				t.Errorf("the comment of %s does not begin with its name", name)
			}
			e, ok := eventOf(m)
			if !ok {
				continue
			}
			if e.version == 0 || len(e.kinds) == 0 {
				t.Errorf("%s has version %d and the kinds %v", name, e.version, e.kinds)
			}
			for _, k := range e.kinds {
				if !kinds[k] {
					t.Errorf("%s is of an unknown kind of aggregate %q", name, k)
				}
			}
			wire := snake(m.GoIdent.GoName)
			if other, taken := names[wire]; taken {
				t.Errorf("%s and %s have the name %s", name, other, wire)
			}
			names[wire] = name
			for _, f := range m.Fields {
				if text[string(f.Desc.Name())] && !isView(f) {
					t.Errorf("%s is text and no view", f.Desc.FullName())
				}
			}
		}
	}
	if len(names) == 0 {
		t.Error("there are no events")
	}
}
