package eventspb

import (
	"bytes"
	"testing"

	//lint:ignore SA1019 that callers of the old API can use our messages is what is tested
	protov1 "github.com/golang/protobuf/proto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// sample sets every field of a message.
func sample(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		value := func() protoreflect.Value {
			switch f.Kind() {
			case protoreflect.MessageKind:
				v := m.NewField(f)
				if f.IsList() {
					v = v.List().NewElement()
				}
				sample(v.Message())
				return v
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(string(f.FullName()) + " é世🚌")
			case protoreflect.BytesKind:
				return protoreflect.ValueOfBytes([]byte{0, 1, 0xff})
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(true)
			case protoreflect.Uint32Kind:
				return protoreflect.ValueOfUint32(1<<32 - 1)
			case protoreflect.Int32Kind:
				return protoreflect.ValueOfInt32(-1)
			case protoreflect.Int64Kind:
				return protoreflect.ValueOfInt64(-1 << 63)
			}
			panic("no sample for " + f.Kind().String())
		}
		if f.IsList() {
			m.Mutable(f).List().Append(value())
			m.Mutable(f).List().Append(value())
		} else {
			m.Set(f, value())
		}
	}
}

// Programs that still use the deprecated github.com/golang/protobuf read and
// write the same bytes as ours. The test lies here because only packages below
// events may import the messages.
func TestDeprecatedProtobufAPIReadsAndWritesTheSameBytes(t *testing.T) {
	t.Parallel()
	protoregistry.GlobalFiles.RangeFilesByPackage("gatebus.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Messages().Len() {
			d := file.Messages().Get(i)
			t.Run(string(d.Name()), func(t *testing.T) {
				t.Parallel()
				mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
				if err != nil {
					t.Fatal(err)
				}
				m := mt.New()
				sample(m)
				now, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.Interface())
				if err != nil {
					t.Fatal(err)
				}
				old := protov1.NewBuffer(nil)
				old.SetDeterministic(true)
				if err := old.Marshal(protov1.MessageV1(m.Interface())); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(now, old.Bytes()) {
					t.Errorf("the bytes differ: %x and, by the old API, %x", now, old.Bytes())
				}
				read := mt.New().Interface()
				if err := protov1.Unmarshal(now, protov1.MessageV1(read)); err != nil {
					t.Fatal(err)
				}
				if !proto.Equal(m.Interface(), read) {
					t.Errorf("the old API reads %v, want %v", read, m)
				}
			})
		}
		return true
	})
}
