package main

import "strings"

// lines are the separators that JSON allows in strings and JavaScript once did
// not allow in its own.
const lines = "\u2028\u2029"

// definitions are the tools: nine on the first page. Some a client cannot use.
var definitions = []string{
	`{"z":1,"name":"give","inputSchema":{"type":"object","properties":{"case":{"type":"string"}}},"execution":{"taskSupport":"optional"},"a":1.0}`,
	`{"inputSchema":{"type":"object"},"name":"mirror"}`,
	`{ "name" : "params" ,	"inputSchema" : { "type" : "object" } }`,
	`{"name":"count","inputSchema":{"type":"object"},"annotations":{"x-hint":[1.0,-0],"readOnlyHint":true}}`,
	`{"name":"secret","inputSchema":{"type":"object"},"_meta":{"vendor/n":123456789012345678901234567890}}`,
	`{"name":"numbers","inputSchema":{"type":"object","properties":{"n":{"maximum":9007199254740993,"minimum":-1e400,"multipleOf":1.0,"enum":[-0,1E+2,0.1e-7]}}}}`,
	`{"name":"strings","description":"` + lines + ` \u2028 \/ \u00e9 é \ud83d\ude00 😀 <b>&</b> \u0000 \ud83d","inputSchema":{"type":"object"}}`,
	`{"name":"recursive","inputSchema":{"type":"object","$defs":{"n":{"$ref":"#/$defs/n"}},"properties":{"again":{"$ref":"#"}}},"outputSchema":{"definitions":{"m":{"$ref":"#/definitions/m"}},"$ref":"#/definitions/m"}}`,
	`{"name":"deep","inputSchema":` + strings.Repeat(`{"type":"object","properties":{"d":`, 100) + `{}` + strings.Repeat(`}}`, 100) + `}`,
	`{"name":"esc\u0061ped \"t\u006fol\"","title":"E","inputSchema":{"type":"object"}}`,
	`{"name":"näme.of a tool","inputSchema":{"type":"object"},"icons":[{"src":"data:,","sizes":[1.0]}]}`,
	`{"name":"Zebra","inputSchema":{"type":"object"}}`,
	`{"name":"bare"}`, `{"inputSchema":null,"name":"null"}`, `{"name":"list", "inputSchema":[1], "x":2}`,
	`{"name":"twice","name":"two"}`, `{"name":"give","description":"another"}`, `{"description":"nameless"}`,
}

// answers are the cases of give: the members of a response that say how it went.
var answers = map[string]string{
	"unknown type":   `"result":{"zz":0, "content":[{"type":"video","data":"%%","n":9007199254740993,"e":1e400,"f":1.0}],"isError":false}`,
	"unknown fields": `"result":{"content":[{"text":"t","vendor":{"b":1,"a":2},"type":"text","annotations":{"priority":0.0,"x":-0}}],"_meta":{"n":1E5},"vendor":[1.0]}`,
	"numbers":        `"result":{"structuredContent":{"n":[9007199254740993,-9007199254740993,1e400,1.0,-0,1E+2,0.10,123456789012345678901234567890]},"content":[]}`,
	"order":          `"result":{"isError":false,"structuredContent":{"z":1,"b":{"y":1,"x":2},"a":3},"content":[{"text":"t","type":"text"}]}`,
	"lines":          `"result":{"content":[{"type":"text","text":"a` + lines + `b\u2028c"}]}`,
	"escapes":        `"result":{"content":[{"type":"text","text":"\/ \u00e9 é \ud83d\ude00 😀 \ud83d \u0000 \u003c< \b\f"}]}`,
	"space":          `"result": { "content" : [ { "type" : "text",	"text" : "t" } ] , "structuredContent" : {  } }`,
	"null":           `"result":{"structuredContent":null,"content":[{"type":"text","text":""}],"_meta":null}`,
	"array":          `"result":{"structuredContent":[1.0,{"a":null}],"content":[]}`,
	"number":         `"result":{"structuredContent":1.0}`,
	"empty":          `"result":{}`,
	"nothing":        `"result":{"content":[]}`,
	"image":          `"result":{"content":[{"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png","n":1.0},{"mimeType":"audio/wav","type":"audio","data":"not base 64"}]}`,
	"resource":       `"result":{"content":[{"type":"resource","resource":{"uri":"a:b","blob":"AA==","x":1.0}},{"type":"resource","resource":{"text":"","uri":"a:c"}},{"type":"resource_link","name":"n","uri":"a:d","size":1e400}]}`,
	"twice":          `"result":{"content":[{"type":"text","text":"1"}],"x":1,"x":2}`,
	"deep":           `"result":{"content":[],"structuredContent":` + strings.Repeat(`{"d":[`, 100) + strings.Repeat(`]}`, 100) + `}`,
	"large":          `"result":{"content":[{"type":"text","text":"` + strings.Repeat("0123456789abcdef", 1<<16) + `"}]}`,
	"is error":       `"result":{"isError":true,"content":[{"type":"text","text":"it failed` + lines + `"}],"n":1.0}`,
	"error shape":    `"result":{"isError":true,"content":[],"structuredContent":{"code":1.0}}`,
	"error":          `"error":{"code":-32050,"message":"no such luck","data":{"n":9007199254740993,"e":1e400,"f":1.0,"z":1,"a":[]}}`,
	"error order":    `"error":{"data":"text` + lines + `","vendor":1.0,"message":"\u00e9 \/","code":-32602}`,
	"error null":     `"error":{"code":-32603,"message":"m","data":null}`,
	"error code":     `"error":{"code":-32050.0,"message":"a whole number all the same"}`,
	"error half":     `"error":{"code":-32050,"message":"half \ud83d a character"}`,
	"error large":    `"error":{"code":9007199254740993,"message":"a code that is no int32"}`,
}
