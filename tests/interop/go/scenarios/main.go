// Runs scenarios of Go's client against a server, one per line of standard input.
//
// Arguments: the service URL, the admin URL. A line "NAMESPACE SCENARIO" runs one; the answer is one JSON line: name,
// error.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	patience = 30 * time.Second
	silence  = 300 * time.Millisecond
)

var scenarios = map[string]func(rig *rig) error{
	"produce-and-consume":  produceAndConsume,
	"batches":              batches,
	"every-compression":    everyCompression,
	"partitions":           partitions,
	"exclusive":            exclusive,
	"failover":             failover,
	"shared":               shared,
	"key-shared":           keyShared,
	"negative-acks":        negativeAcks,
	"seek":                 seek,
	"reader":               reader,
	"dead-letters":         deadLetters,
	"schema":               schema,
	"schema-incompatible":  schemaIncompatible,
	"delayed":              delayed,
	"pattern":              pattern,
	"stream-over-moves":    streamOverMoves,
	"chunked-message":      chunkedMessage,
	"missing-namespace":    missingNamespace,
	"properties-and-times": propertiesAndTimes,
}

func main() {
	quiet := logrus.New()
	quiet.SetOutput(os.Stderr)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:              os.Args[1],
		OperationTimeout: patience,
		Logger:           log.NewLoggerWithLogrus(quiet),
	})
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		text := ""
		made := &rig{client: client, adminURL: os.Args[2], namespace: words[0]}
		if err := scenarios[words[1]](made); err != nil {
			text = err.Error()
		}
		made.close()
		answer, _ := json.Marshal(map[string]string{"name": words[1], "error": text})
		fmt.Println(string(answer))
	}
	client.Close()
}
