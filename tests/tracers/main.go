// Requests of a shop, traced by dd-trace-go: argument 1 is their number.
package main

import (
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/DataDog/dd-trace-go/v2/ddtrace/ext"
	"github.com/DataDog/dd-trace-go/v2/ddtrace/tracer"
	"github.com/DataDog/dd-trace-go/v2/profiler"
)

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	tracer.Start(tracer.WithLogStartup(false))
	profile := os.Getenv("PROFILE") != ""
	if profile {
		profiler.Start(profiler.WithPeriod(2 * time.Second))
	}
	for number := 0; number < count; number++ {
		root := tracer.StartSpan("web.request", tracer.ResourceName("GET /cart"), tracer.SpanType(ext.SpanTypeWeb))
		root.SetTag("number", strconv.Itoa(number))
		root.SetTag("text", "größe")
		tracer.StartSpan("postgres.query", tracer.ChildOf(root.Context()), tracer.ResourceName("SELECT 1")).Finish()
		if number == 7 {
			root.Finish(tracer.WithError(errors.New("the cart is locked")))
		} else {
			root.Finish()
		}
	}
	for end := time.Now().Add(3 * time.Second); profile && time.Now().Before(end); {
	}
	profiler.Stop()
	tracer.Stop()
}
