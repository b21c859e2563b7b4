// Produces with Go's client and credentials of many kinds, and prints what an application sees.
//
// A line of standard input has requests, separated by the character RS; a request has fields NAME=VALUE, separated by
// tabs. The requests of a line run at once and are answered by one line: "SCENARIO TAB OUTCOME", separated by RS. An
// outcome is "ok" or the error's text.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const separator = "\x1e"

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		requests := strings.Split(lines.Text(), separator)
		answers := make([]string, len(requests))
		var running sync.WaitGroup
		for i, request := range requests {
			running.Add(1)
			go func() {
				defer running.Done()
				answers[i] = outcome(parsed(request))
			}()
		}
		running.Wait()
		fmt.Println(strings.Join(answers, separator))
	}
}

func outcome(request map[string]string) string {
	text := "ok"
	if err := produce(request); err != nil {
		text = strings.Join(strings.Fields(err.Error()), " ")
	}
	return request["scenario"] + "\t" + text
}

func parsed(line string) map[string]string {
	request := map[string]string{}
	for _, field := range strings.Split(line, "\t") {
		name, value, _ := strings.Cut(field, "=")
		request[name] = value
	}
	return request
}

func produce(request map[string]string) error {
	seconds, err := strconv.Atoi(request["seconds"])
	if err != nil {
		return err
	}
	deadline := time.Duration(seconds) * time.Second
	quiet := logrus.New()
	quiet.SetOutput(os.Stderr)
	options := pulsar.ClientOptions{
		URL:                     request["url"],
		ConnectionTimeout:       deadline,
		OperationTimeout:        deadline,
		TLSTrustCertsFilePath:   request["trust"],
		TLSValidateHostname:     true,
		MaxConnectionsPerBroker: 1,
		Logger:                  log.NewLoggerWithLogrus(quiet),
	}
	if request["plugin"] != "" {
		authentication, err := pulsar.NewAuthentication(request["plugin"], request["parameters"])
		if err != nil {
			return err
		}
		options.Authentication = authentication
	}
	client, err := pulsar.NewClient(options)
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: request["topic"]})
	if err != nil {
		return err
	}
	defer producer.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	_, err = producer.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("hello")})
	return err
}
