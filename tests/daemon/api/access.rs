//! Who may read the page and the API, and how its errors look.

use tributary::simulate::datadog::DatadogDialect;

use super::*;

#[tokio::test]
async fn the_page_is_served_without_a_token_and_may_load_nothing_from_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let toml =
        format!("[admin]\nlisten = \"127.0.0.1:0\"\ntoken_file = {:?}\n{}", file.display().to_string(), listener(""));
    let daemon = Daemon::start(&toml).await;
    let at = address(&daemon);
    let page = request(at, "GET", "/", "").await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("<html"), "{}", page.text());
    for header in
        ["content-type: text/html; charset=utf-8", "x-content-type-options: nosniff", "cache-control: no-cache"]
    {
        assert!(page.head.contains(header), "{}", page.head);
    }
    let policy = page.head.lines().find_map(|line| line.strip_prefix("content-security-policy: ")).unwrap();
    assert!(policy.starts_with("default-src 'self';") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!["unsafe", "data:", "blob:", "http", "*"].iter().any(|word| policy.contains(word)), "{policy}");
    let etag = page.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let again = request(at, "GET", "/", &format!("if-none-match: {etag}\r\n")).await;
    assert_eq!((again.status, again.body.len()), (304, 0));
    assert_eq!(request(at, "HEAD", "/index.html", "").await.status, 200);

    let refused = request(at, "GET", "/api/v1/overview", "").await;
    assert_eq!(refused.status, 401);
    assert!(refused.json()["error"].as_str().unwrap().contains("the token is missing or wrong"));
    assert!(refused.head.contains("www-authenticate: bearer"));
    let wrong = request(at, "GET", "/api/v1/overview", "authorization: Bearer s3cre\r\n").await;
    assert_eq!(wrong.status, 401);
    let right = "authorization: Bearer s3cret\r\n";
    assert_eq!(request(at, "GET", "/api/v1/overview", right).await.status, 200);
    // A command needs no other header beside the token.
    let command = request(at, "POST", "/api/v1/agents/test:1/commands/stop", right).await;
    assert_eq!((command.status, &command.json()["status"]), (404, &404.into()));
    daemon.stop().await;
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let daemon = of_spans().await;
    let at = address(&daemon);
    for header in ["origin: http://evil.example\r\n", "sec-fetch-site: cross-site\r\n"] {
        for (method, path) in [("GET", "/"), ("GET", "/api/v1/events/live"), ("POST", "/api/v1/code/a:1/marks")] {
            let refused = request(at, method, path, &format!("x-tributary: 1\r\n{header}")).await;
            assert_eq!(refused.status, 403, "{method} {path} {header}");
        }
    }
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(b"GET /api/v1/agents HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    within("a response", stream.read_to_string(&mut text)).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 403") && text.contains("{\"error\":\"the host evil.example"), "{text}");
    let form = request(at, "POST", "/api/v1/agents/test:1/commands/stop", "").await;
    assert_eq!(form.status, 403);
    assert!(form.json()["error"].as_str().unwrap().contains("X-Tributary"));
    daemon.stop().await;
}

#[tokio::test]
async fn errors_are_sentences_in_json() {
    let daemon = of_spans().await;
    for (path, status, words) in [
        ("nowhere", 404, "no such path"),
        ("overview?verbose=1", 400, "unknown parameter verbose; there are none"),
        ("traces?limit=0", 400, "limit is 0; it must be 1 to 10000"),
        ("traces?limit=many", 400, "limit must be a whole number"),
        ("traces?order=best", 400, "it must be one of latest, slowest"),
        ("traces?from_ms=9&to_ms=8", 400, "to_ms is before from_ms"),
        ("traces/xyz", 400, "32 hexadecimal digits"),
        ("traces/00000000000000000000000000000001", 404, "has left the window"),
        ("events?kind=spam", 400, "there is no kind spam; the kinds are log, span"),
        ("events?protocol=smtp", 400, "there is no protocol smtp"),
        ("events/1.1", 404, "no such event"),
        ("events/live?rate=5000", 400, "it must be 1 to 1000"),
        ("wire?listener=unknown", 404, "there is no listener unknown"),
        ("agents/test:9", 404, "no such agent"),
        ("heap/1", 404, "no such dump"),
        ("heap/compare", 400, "before= and after="),
        ("code/java:1", 404, "no such run"),
        ("machines/x", 404, "no such machine"),
        ("profiles/download", 404, "no stacks"),
        ("profiles/flame?type=gold", 400, "cpu, alloc_objects, wall, calls"),
        ("agents/%FF", 400, "not UTF-8"),
    ] {
        let response = get(&daemon, path).await;
        assert_eq!(response.status, status, "{path}: {}", response.text());
        let error = response.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(words), "{path}: {error}");
    }
    assert_eq!(get(&daemon, "agents/test:9/commands/stop").await.status, 405);
    assert_eq!(post(&daemon, "overview").await.status, 405);
    assert_eq!(post(&daemon, "code/test:1/marks").await.status, 404);
    daemon.stop().await;
}

#[tokio::test]
async fn every_answer_says_over_which_time_it_looks_and_how_much_it_has() {
    let daemon = of_spans().await;
    let openapi = json(&daemon, "openapi.json").await;
    let mut checked = 0;
    for (path, methods) in openapi["paths"].as_object().unwrap() {
        let content = &methods["get"]["responses"]["200"]["content"];
        let is_of_view = content["application/json"]["schema"]["$ref"] == "#/components/schemas/Answer";
        if path.contains('{') || !is_of_view || path.ends_with("compare") || path.ends_with("chart") {
            continue;
        }
        let answer = json(&daemon, path.strip_prefix("/api/v1/").unwrap()).await;
        assert_eq!(number(&answer["window"]["limit_ms"]), 900_000, "{path}");
        assert_eq!(answer["coverage"]["text"], "no events", "{path}: {answer}");
        checked += 1;
    }
    assert!(checked >= 7, "{checked}");
    daemon.stop().await;
}

#[tokio::test]
async fn a_time_far_in_the_future_ends_now() {
    let daemon = of_spans().await;
    simulate(&daemon, "test", AgentKind::Datadog(DatadogDialect::default()), 50).await;
    until(&daemon, "services", |services| !array(services, "services").is_empty()).await;
    let paths =
        ["services?", "map?", "traces?", "events?", "losses?", "profiles/flame?type=calls&", "profiles/chart?agent=x&"];
    for path in paths {
        let answer = json(&daemon, &format!("{path}to_ms={}", u64::MAX)).await;
        let window = &answer["window"];
        assert!(number(&window["from_ms"]) < number(&window["to_ms"]), "{path}: {window}");
    }
    let services = json(&daemon, &format!("services?to_ms={}", u64::MAX)).await;
    assert!(number(&services["window"]["to_ms"]) - number(&services["window"]["from_ms"]) <= 900_000, "{services}");
    daemon.stop().await;
}

#[tokio::test]
async fn without_the_view_the_rest_of_the_page_works() {
    let toml = format!("[admin]\nlisten = \"127.0.0.1:0\"\n[view]\nenabled = false\n{}", listener(""));
    let daemon = Daemon::start(&toml).await;
    assert_eq!(json(&daemon, "overview").await["view"]["is_on"], false);
    assert_eq!(number(&json(&daemon, "agents").await["total"]), 0);
    let off = get(&daemon, "traces").await;
    assert_eq!((off.status, off.json()["error"].as_str().unwrap()), (404, "the view is off ([view] enabled)"));
    daemon.stop().await;
}
