// Runs scenarios of Go's admin client against a server, one per line of standard input: what it sends, and what it
// reads into types of its own.
//
// Argument: the admin URL. A line "NAMESPACE SCENARIO" runs one; the answer is one JSON line: name, error.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"

	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

type scenario func(client admin.Client, namespace utils.NameSpaceName) error

var scenarios = map[string]scenario{
	"auto-creation-is-switched-off": autoCreationIsSwitchedOff,
	"offload-policies":              offloadPolicies,
	"stats-of-a-subscription":       statsOfASubscription,
	"a-number-below-its-range":      aNumberBelowItsRange,
}

func main() {
	client, err := admin.New(&config.Config{WebServiceURL: os.Args[1]})
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer, _ := json.Marshal(map[string]string{"name": words[1], "error": run(client, words[0], words[1])})
		fmt.Println(string(answer))
	}
}

func run(client admin.Client, namespace string, name string) string {
	parsed, err := utils.GetNamespaceName(namespace)
	if err == nil {
		err = scenarios[name](client, *parsed)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func same(expected any, found any) error {
	if !reflect.DeepEqual(expected, found) {
		return fmt.Errorf("expected %v, found %v", expected, found)
	}
	return nil
}

func topicOf(namespace utils.NameSpaceName) (*utils.TopicName, error) {
	return utils.GetTopicName("persistent://" + namespace.String() + "/topic")
}

func autoCreationIsSwitchedOff(client admin.Client, namespace utils.NameSpaceName) error {
	wanted := utils.TopicAutoCreationConfig{Allow: false}
	if err := client.Namespaces().SetTopicAutoCreation(namespace, wanted); err != nil {
		return err
	}
	found, err := client.Namespaces().GetTopicAutoCreation(namespace)
	if err != nil {
		return err
	}
	return errors.Join(same(false, found.Allow), same(utils.TopicType(""), found.Type))
}

func offloadPolicies(client admin.Client, namespace utils.NameSpaceName) error {
	topic, err := topicOf(namespace)
	if err != nil {
		return err
	}
	wanted := utils.NewOffloadPolicies()
	wanted.ManagedLedgerOffloadDriver = "aws-s3"
	wanted.S3ManagedLedgerOffloadBucket = "cold"
	wanted.S3ManagedLedgerOffloadRegion = "eu-west-1"
	wanted.S3ManagedLedgerOffloadServiceEndpoint = "http://minio:9000"
	if err := client.Topics().Create(*topic, 0); err != nil {
		return err
	}
	if err := client.Topics().SetOffloadPolicies(*topic, *wanted); err != nil {
		return err
	}
	found, err := client.Topics().GetOffloadPolicies(*topic)
	if err != nil {
		return err
	}
	return errors.Join(
		same("aws-s3", found.ManagedLedgerOffloadDriver),
		same("cold", found.S3ManagedLedgerOffloadBucket),
		same("eu-west-1", found.S3ManagedLedgerOffloadRegion),
		same("http://minio:9000", found.S3ManagedLedgerOffloadServiceEndpoint),
		same(int64(14400000), found.ManagedLedgerOffloadDeletionLagInMillis),
	)
}

func statsOfASubscription(client admin.Client, namespace utils.NameSpaceName) error {
	topic, err := topicOf(namespace)
	if err != nil {
		return err
	}
	if err := client.Topics().Create(*topic, 0); err != nil {
		return err
	}
	if err := client.Subscriptions().Create(*topic, "s", utils.Earliest); err != nil {
		return err
	}
	// Go's client cannot set a subscription's properties; others can.
	path := "/admin/v2/" + topic.GetRestPath() + "/subscription/s/properties"
	request, err := http.NewRequest(http.MethodPut, os.Args[1]+path, strings.NewReader(`{"team": "payments"}`))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := same(http.StatusNoContent, response.StatusCode); err != nil {
		return err
	}
	internal, err := client.Topics().GetInternalStats(*topic)
	if err != nil {
		return err
	}
	info, err := client.Topics().GetInternalInfo(*topic)
	if err != nil {
		return err
	}
	cursor, found := internal.Cursors["s"]
	_, recorded := info.Cursors["s"]
	return errors.Join(same(true, found), same(0, len(cursor.Properties)), same(true, recorded))
}

func aNumberBelowItsRange(client admin.Client, namespace utils.NameSpaceName) error {
	err := client.Namespaces().SetMaxProducersPerTopic(namespace, -1)
	var refused rest.Error
	if !errors.As(err, &refused) {
		return fmt.Errorf("not refused: %v", err)
	}
	return errors.Join(same(412, refused.Code), same("maxProducersPerTopic must be 0 or more", refused.Reason))
}
