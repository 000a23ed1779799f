//! The configuration of the collector as agents read it: a Java object in version 1, JSON in later versions.
//!
//! Only the values that this agent needs are kept. Its classes are always traced, whatever the lists exclude.

use super::buffers;
use super::harm::Harm;
use super::json;

/// The configuration of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Configuration {
    /// Memory for all send buffers, in bytes.
    pub buffer_memory_budget: i32,
    /// Milliseconds between heartbeats.
    pub heartbeat_interval: i32,
    /// Data connections.
    pub data_senders: i32,
    /// Retries of interrupted threads.
    pub queue_retries: i32,
    /// The run id that data connections send, as the byte on the wire.
    pub run: u8,
    /// The number of expressions that exclude classes.
    pub exclusions: usize,
    /// The number of expressions that include classes.
    pub inclusions: usize,
}

/// With less memory the agent cannot create its buffers.
const MIN_BUDGET: i32 = 640;

impl Configuration {
    /// Reads the body of a configuration message to an agent of `version`.
    ///
    /// # Errors
    /// The effect on a real agent.
    pub(super) fn read(version: u8, body: &[u8]) -> Result<Self, Harm> {
        let read = if version == 1 { java(body) } else { json::configuration(body) };
        read.map_err(|fault| Harm::Abort(format!("the configuration cannot be read: {fault}")))
    }

    /// The effect of these values on a program with this number of threads.
    pub(super) fn check(&self, version: u8, threads: u16) -> Result<(), Harm> {
        let &Configuration { buffer_memory_budget: budget, heartbeat_interval, data_senders, exclusions, .. } = self;
        if budget < MIN_BUDGET {
            return Err(Harm::Abort(format!("a buffer memory budget of {budget} bytes; {MIN_BUDGET} is the least")));
        }
        if heartbeat_interval <= 0 {
            let text = format!("a heartbeat interval of {heartbeat_interval} ms floods the collector and never starts");
            return Err(Harm::Hang(text));
        }
        if data_senders <= 0 {
            return Err(Harm::Hang(format!("{data_senders} data connections: nothing empties the buffers")));
        }
        if version >= 2 && exclusions == 0 {
            return Err(Harm::Hang("without exclusions the agent traces the platform, and so itself".to_owned()));
        }
        let (_, buffers) = buffers::cut(self.budget_bytes());
        if version == 1 && usize::from(threads) > buffers {
            return Err(Harm::Hang(format!("{threads} threads at once deadlock over {buffers} buffers")));
        }
        Ok(())
    }

    pub(super) fn budget_bytes(&self) -> usize {
        usize::try_from(self.buffer_memory_budget).unwrap_or_default()
    }
}

/// Reads the Java object. Only its values and texts differ between configurations.
fn java(blob: &[u8]) -> Result<Configuration, String> {
    let mut rest = Rest(blob);
    rest.expect("the stream header", b"\xAC\xED\x00\x05\x73\x72")?;
    let class = rest.text("the class name")?;
    if class != b"com.secdec.bytefrog.common.config.RuntimeAgentConfigurationV1" {
        return Err(format!("no class {}", String::from_utf8_lossy(class)));
    }
    rest.expect("the serial version and flags", b"\xBF\x53\xEF\xB7\x76\x1D\x26\xC2\x02\x00\x07")?;
    for field in [
        "IbufferMemoryBudget",
        "IheartbeatInterval",
        "InumDataSenders",
        "IqueueRetryCount",
        "BrunId",
        "Lexclusions",
        "Linclusions",
    ] {
        rest.expect(field, &field.as_bytes()[..1])?;
        if rest.text(field)? != &field.as_bytes()[1..] {
            return Err(format!("field {} is missing", &field[1..]));
        }
        match field {
            "Lexclusions" => rest.expect("the type of the lists", b"\x74\x00\x10Ljava/util/List;")?,
            "Linclusions" => rest.expect("the type of the lists", b"\x71\x00\x7E\x00\x01")?,
            _ => {}
        }
    }
    rest.expect("the end of the class", b"\x78\x70")?;
    let [buffer_memory_budget, heartbeat_interval, data_senders, queue_retries] =
        [rest.int()?, rest.int()?, rest.int()?, rest.int()?];
    let run = rest.take(1)?[0];
    rest.expect("the exclusions, which may not be null", b"\x73")?;
    rest.expect("the list class", b"\x72\x00\x13java.util.ArrayList\x78\x81\xD2\x1D\x99\xC7\x61\x9D\x03")?;
    rest.expect("the list class", b"\x00\x01I\x00\x04size\x78\x70")?;
    let exclusions = rest.list()?;
    rest.expect("the inclusions, which may not be null", b"\x73")?;
    rest.expect("the list class", b"\x71\x00\x7E\x00\x03")?;
    let inclusions = rest.list()?;
    if !rest.0.is_empty() {
        return Err(format!("{} bytes too many", rest.0.len()));
    }
    Ok(Configuration {
        buffer_memory_budget,
        heartbeat_interval,
        data_senders,
        queue_retries,
        run,
        exclusions,
        inclusions,
    })
}

/// The bytes that are not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        let (front, rest) = self.0.split_at_checked(bytes).ok_or("it ends too early")?;
        self.0 = rest;
        Ok(front)
    }

    fn expect(&mut self, what: &str, bytes: &[u8]) -> Result<(), String> {
        self.0 = self.0.strip_prefix(bytes).ok_or_else(|| format!("{what} should follow"))?;
        Ok(())
    }

    fn int(&mut self) -> Result<i32, String> {
        let bytes = self.take(4)?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | i32::from(*byte)))
    }

    fn text(&mut self, what: &str) -> Result<&'a [u8], String> {
        let length = self.take(2).map_err(|fault| format!("{what}: {fault}"))?;
        self.take(usize::from(length[0]) << 8 | usize::from(length[1]))
    }

    /// Reads the body of a list of texts: their number.
    fn list(&mut self) -> Result<usize, String> {
        let count = self.int()?;
        self.expect("the capacity of a list", b"\x77\x04")?;
        self.int()?;
        let count = usize::try_from(count).map_err(|_| format!("a list of {count} texts"))?;
        for _ in 0..count {
            self.expect("a text", b"\x74")?;
            self.text("a text")?;
        }
        self.expect("the end of a list", b"\x78")?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/bytefrog/configuration");
        std::fs::read(format!("{folder}/{name}")).unwrap()
    }

    const DEMO: Configuration = Configuration {
        buffer_memory_budget: 25_600,
        heartbeat_interval: 200,
        data_senders: 3,
        queue_retries: 5,
        run: 7,
        exclusions: 1,
        inclusions: 1,
    };

    #[test]
    fn recorded_configurations_are_read_in_both_forms() {
        let two_packages = Configuration {
            buffer_memory_budget: 4 << 20,
            heartbeat_interval: 1_000,
            data_senders: 2,
            run: 42,
            exclusions: 2,
            inclusions: 2,
            ..DEMO
        };
        let run9 = Configuration { heartbeat_interval: 100, data_senders: 1, run: 9, ..DEMO };
        for (name, expected) in [("demo", DEMO), ("demo-run9", run9), ("two-packages", two_packages)] {
            assert_eq!(Configuration::read(1, &recorded(&format!("v1-{name}.ser"))), Ok(expected));
            assert_eq!(Configuration::read(3, &recorded(&format!("v2-v3-v4-{name}.json"))), Ok(expected));
        }
    }

    #[test]
    fn no_byte_of_the_java_object_may_be_missing_or_in_excess() {
        let blob = recorded("v1-demo.ser");
        for length in 0..blob.len() {
            assert!(matches!(Configuration::read(1, &blob[..length]), Err(Harm::Abort(_))), "{length}");
        }
        assert!(Configuration::read(1, &[&blob[..], b"x"].concat()).is_err());
    }

    #[test]
    fn the_class_name_of_later_agents_aborts_the_jvm() {
        let blob = recorded("v1-demo.ser");
        let mut renamed = blob.clone();
        renamed[8..14].copy_from_slice(b"com.co");
        let harm = Configuration::read(1, &renamed).unwrap_err();
        assert!(harm.to_string().starts_with("the JVM would have aborted: the configuration cannot be read: no class"));
    }

    #[test]
    fn harmful_values_are_reported() {
        assert_eq!(DEMO.check(4, 64), Ok(()));
        assert_eq!(DEMO.check(1, 12), Ok(()));
        assert!(matches!(DEMO.check(1, 13), Err(Harm::Hang(_))));
        let no_exclusions = Configuration { exclusions: 0, ..DEMO };
        assert_eq!(no_exclusions.check(1, 4), Ok(()));
        assert!(matches!(no_exclusions.check(2, 4), Err(Harm::Hang(_))));
        assert!(matches!(Configuration { buffer_memory_budget: 639, ..DEMO }.check(4, 1), Err(Harm::Abort(_))));
        assert!(matches!(Configuration { heartbeat_interval: 0, ..DEMO }.check(4, 1), Err(Harm::Hang(_))));
        assert!(matches!(Configuration { data_senders: 0, ..DEMO }.check(4, 1), Err(Harm::Hang(_))));
    }
}
