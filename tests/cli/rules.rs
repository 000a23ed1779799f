//! The rules of sinks in a configuration: errors with their places, rules in words, and options that try to do harm.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tributary::config::Config;

use crate::config_errors::summary;
use crate::live::binary::run;

/// `line:column: message; help` of every error of a sink with these lines; the first of them is line 5.
fn errors(lines: &str) -> Vec<String> {
    summary(&format!("[listeners.java]\nprotocol = \"bytefrog\"\n[sinks.a]\ntype = \"discard\"\n{lines}\n"))
}

#[test]
fn each_wrong_option_of_a_rule_is_an_error_at_its_place() {
    for (lines, expected) in [
        ("where = [{ knd = 'span' }]", "5:12: unknown key `knd` in [sinks.a.where]; did you mean `kind`?"),
        ("where = [{ kind = 'spam' }]", "5:19: `kind` cannot be \"spam\"; did you mean \"span\"?"),
        (
            "where = { kind = 'span' }",
            "5:9: `where` must be a list of tables, not a table; for example where = [{ kind = \"span\", min_duration = \"100ms\" }]",
        ),
        ("unless = ['a']", "5:11: an element of `unless` must be a table, not a string"),
        ("where = [{ }]", "5:10: a condition without keys; for every event write { name = \"*\" }"),
        ("where = [{ listener = 'jave' }]", "5:23: `listener` cannot be \"jave\"; did you mean \"java\"?"),
        (
            "where = [{ protocol = 'zipkin' }]",
            "5:23: `protocol` cannot be \"zipkin\"; allowed: \"rbkit\", \"bytefrog\", \"datadog\", \"datadog_agent\", \"endless\", \"zico\", \"otlp\" or \"nats\"",
        ),
        ("where = [{ severity = 'warning' }]", "5:23: `severity` cannot be \"warning\"; did you mean \"warn\"?"),
        (
            "where = [{ status = 'failed' }]",
            "5:21: `status` cannot be \"failed\"; allowed: \"unset\", \"ok\" or \"error\"",
        ),
        (
            "where = [{ min_duration = '-1s' }]",
            "5:27: `min_duration` is not a duration; write a whole number and a unit, without spaces and decimal points",
        ),
        ("where = [{ min_duration = 100 }]", "5:27: `min_duration` has no unit; write a unit, e.g. \"100s\""),
        (
            "where = [{ kind = 'log', status = 'ok' }]",
            "5:35: with `status` this condition is never true; only events of kind = \"span\" have it",
        ),
        (
            "where = [{ severity = 'warn', min_duration = '1s' }]",
            "5:46: with `min_duration` this condition is never true; only events of kind = \"span\" have it",
        ),
        (
            "where = [{ name = 'a[bc]' }]",
            "5:19: `name` has a `[`, and there are no sets of characters; write `\\[` for a bracket",
        ),
        ("where = [{ name = '' }]", "5:19: `name` is empty; write a name; `*` is any number of characters"),
        ("where = [{ name = 'a\\' }]", "5:19: `name` ends in `\\`; write `\\\\` for a backslash"),
        (
            "where = [{ attribute = 'a' }]",
            "5:24: what must `a` be?; write exists = true, equals, glob, min or max beside it",
        ),
        (
            "where = [{ equals = 'a' }]",
            "5:21: `equals` of what?; write attribute = \"key\" or resource = \"key\" beside it",
        ),
        (
            "where = [{ attribute = 'a', resource = 'b', equals = 1 }]",
            "5:40: a condition has `attribute` or `resource`, not both; write `attribute` here, and a condition of its own with `resource` in `unless`, say",
        ),
        ("where = [{ attribute = '', equals = 1 }]", "5:24: `attribute` has 0 bytes; allowed: 1 to 256 bytes"),
        ("where = [{ attribute = 'a', min = '1' }]", "5:35: `min` must be a number, not a string"),
        ("where = [{ attribute = 'a', min = nan }]", "5:35: `min` is not finite; write a number"),
        (
            "where = [{ attribute = 'a', min = 99999999999999999999 }]",
            "5:35: `min` is out of range; allowed: integers of 64 bits",
        ),
        ("where = [{ attribute = 'a', min = 2, max = 1.5 }]", "5:44: `max` is less than `min`"),
        (
            "where = [{ attribute = 'a', exists = false, equals = 1 }]",
            "5:54: with exists = false and `equals` this condition is never true",
        ),
        (
            "where = [{ attribute = 'a', equals = [1] }]",
            "5:38: `equals` must be a single value, not an array; allowed: a string, a number, true or false",
        ),
        ("unless = [{ name = 'a', always = true }]", "5:25: unknown key `always` in [sinks.a.unless]"),
        ("sample = { keep = 2 }", "5:19: `keep` is out of range; write a number from 0 to 1, e.g. 0.1"),
        ("sample = { keep = -0.5 }", "5:19: `keep` is out of range; write a number from 0 to 1, e.g. 0.1"),
        ("sample = { keep = -1 }", "5:19: `keep` is out of range; write a number from 0 to 1, e.g. 0.1"),
        ("sample = { keep = inf }", "5:19: `keep` is not finite; write a number"),
        ("sample = { keep = '10%' }", "5:19: `keep` must be a number, not a string"),
        (
            "sample = { by = 'event' }",
            "5:1: [sinks.a.sample] needs the key `keep`; write a number from 0 to 1, e.g. 0.1",
        ),
        ("sample = { keep = 0.1, by = 'trace' }", "5:29: `by` cannot be \"trace\"; allowed: \"trace_id\" or \"event\""),
        ("sample = [{ keep = 0.1 }]", "5:10: `sample` must be a table, not an array; for example [sinks.a.sample]"),
        (
            "remove = ['a', 'b[']",
            "5:16: an element of `remove` has a `[`, and there are no sets of characters; write `\\[` for a bracket",
        ),
        (
            "remove = ['resource:']",
            "5:11: an element of `remove` is empty; write a name; `*` is any number of characters",
        ),
        ("remove = 'a'", "5:10: `remove` must be a list, not a string; write [\"a\"]"),
        (
            "hash = { attributes = ['a'] }",
            "5:1: [sinks.a.hash] needs the key `key_file`; write key_file = \"the path of a file\"",
        ),
        ("hash = { key_file = '/k' }", "5:1: `hash` names no attributes; write attributes = [\"user.id\"]"),
        (
            "hash = { attributes = ['a'], keyfile = '/k', key_file = '/k' }",
            "5:30: unknown key `keyfile` in [sinks.a.hash]; did you mean `key_file`?",
        ),
    ] {
        assert!(
            errors(lines).iter().any(|error| error == expected),
            "{lines}\n{expected:?} is not in {:#?}",
            errors(lines)
        );
    }
    // A key twice is no TOML.
    assert!(errors("sample = { keep = 0.1, by = 'trace_id', by = 'event' }")[0].contains("invalid TOML"));
}

#[test]
fn ten_thousand_conditions_are_one_error_and_take_no_more_than_linear_time() {
    let text = |count: usize| {
        let list = |element: &str| vec![element; count].join(",\n");
        format!(
            "where = [{}]\nunless = [{}]\nremove = [{}]",
            list("{ kind = 'spam', knd = 1 }"),
            list("{ }"),
            list("'['")
        )
    };
    assert_eq!(
        errors(&text(10_000)),
        [
            "5:9: `where` has 10000 elements; at most 256 are allowed",
            "10005:10: `unless` has 10000 elements; at most 256 are allowed",
            "20005:10: `remove` has 10000 elements; at most 256 are allowed"
        ]
    );
    // With the square of it, this would not end.
    assert_eq!(errors(&text(100_000)).len(), 3);
}

const RULES: &str = r#"
[listeners.java]
protocol = "bytefrog"
[sinks.slow]
type = "discard"
where = [
    { kind = "span", min_duration = "100ms", listener = "java" },
    { kind = "span", status = "error", always = true },
    { kind = "loss" },
    { severity = "WARN", protocol = "bytefrog" },
    { attribute = "bytes", min = 1, max = 2.5 },
    { resource = "service.name", glob = "shop-*" },
]
unless = [{ name = "rbkit.object.*" }, { attribute = "http.route", equals = "/health" }, { attribute = "a", exists = false }]
sample = { keep = 0.07 }
remove = ["http.request.header.cookie", "resource:host.name"]
hash = { attributes = ["endless.machine.id", "*.user.id"], key_file = "/etc/tributary/key" }
[sinks.all]
type = "discard"
"#;

const WORDS: [&str; 12] = [
    "sink slow takes spans of at least 100ms of listener java (where)",
    "sink slow takes spans with status error, whatever `sample` says (where)",
    "sink slow takes losses (where)",
    "sink slow takes logs of severity WARN or above of protocol bytefrog (where)",
    "sink slow takes events that have bytes of at least 1 and of at most 2.5 (where)",
    "sink slow takes events whose resource has service.name like shop-* (where)",
    "sink slow leaves out events named rbkit.object.* (unless.1)",
    "sink slow leaves out events that have http.route equal to \"/health\" (unless.2)",
    "sink slow leaves out events that have no a (unless.3)",
    "sink slow keeps 7 % of the traces, events that belong to none, and what `always` keeps (sample)",
    "sink slow removes values with these keys: http.request.header.cookie, resource:host.name",
    "sink slow replaces values with these keys by 16 hex digits, with the key in /etc/tributary/key: \
     endless.machine.id, *.user.id",
];

#[test]
fn check_shows_each_rule_in_words_and_prints_what_reads_as_itself() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    fs::write(&path, RULES).unwrap();
    let path = path.to_str().unwrap();
    let ended = run(&["check", "--config", path]);
    assert_eq!((ended.code, &*ended.stdout), (Some(0), ""));
    let lines: Vec<_> = ended.stderr.lines().filter(|line| line.starts_with("sink ")).collect();
    assert_eq!(lines, WORDS);
    let printed = run(&["check", "--print", "--config", path]).stdout;
    for line in WORDS {
        assert!(printed.contains(&format!("\n# {line}\n")), "{line:?} is not in\n{printed}");
    }
    let (config, again) = (Config::parse("a", RULES).unwrap(), Config::parse("b", &printed).unwrap());
    assert_eq!(config, again);
}

#[test]
fn a_key_file_that_every_user_can_read_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    fs::write(&path, "k").unwrap();
    let text =
        format!("[sinks.a]\ntype = \"discard\"\nhash = {{ attributes = [\"a\"], key_file = \"{}\" }}", path.display());
    let config = Config::parse("t.toml", &text).unwrap().config;
    for (mode, is_exposed) in [(0o604, true), (0o640, false)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let options: Vec<_> = config.exposed_secrets().into_iter().map(|exposed| exposed.option).collect();
        assert_eq!(options == ["sinks.a.hash.key_file"], is_exposed, "{options:?}");
    }
}

#[test]
fn rules_decide_which_sinks_acknowledge_and_which_share_files() {
    let sinks = |first: &str, second: &str| {
        let sink = |name: &str, rules: &str| format!("[sinks.{name}]\ntype = \"file\"\npath = \"/x/a\"\n{rules}\n");
        format!(
            "[listeners.java]\nprotocol = \"bytefrog\"\n{}{}",
            sink("a", first),
            sink("b", second).replace("/x/a", "/x/{listener}")
        )
    };
    // The second sink would write `/x/a` only for a listener of that name.
    let text = sinks("", "").replace("listeners.java", "listeners.a");
    assert!(Config::parse("t", &text).unwrap_err().to_string().contains("write the same file"));
    let text = sinks("", "unless = [{ listener = \"a\" }]").replace("listeners.java", "listeners.a");
    assert!(Config::parse("t", &text).is_ok());
    let durable = |rules: &str| {
        let text = format!(
            "[listeners.d]\nprotocol = \"endless\"\nacknowledge = \"durable\"\n[listeners.java]\nprotocol = \"bytefrog\"\n\
             [sinks.a]\ntype = \"discard\"\n{rules}\n"
        );
        Config::parse("t", &text).is_ok()
    };
    assert!(!durable("") && !durable("unless = [{ listener = 'd', kind = 'log' }]"));
    assert!(durable("where = [{ listener = 'java' }]") && durable("unless = [{ protocol = 'endless' }]"));
}
