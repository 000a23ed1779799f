//! The configuration message: the answer of the collector to a hello, and its only message with a body.

use std::fmt;

use bytes::{BufMut, BytesMut};

use tributary_codec::mutf8;

/// The configuration of an agent. All fields must be present and no list may be null: otherwise the JVM of the traced
/// program aborts (section 1.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Configuration<'a> {
    /// Memory for all send buffers of the agent, in bytes. Below 640 the JVM aborts; some MiB are right (rule 6).
    pub buffer_memory_budget: i32,
    /// Milliseconds between heartbeats, and the shortest delay of the exit of the program. With 0 the agent floods the
    /// collector and never starts.
    pub heartbeat_interval_millis: i32,
    /// Data connections that the agent opens. With 0 the program hangs.
    pub data_senders: i32,
    /// How often the agent retries after one of its threads was interrupted.
    pub queue_retry_count: i32,
    /// The run id that its data connections send: 0 to 127, because agents read it as a signed byte (rule 7).
    pub run_id: u8,
    /// Java regular expressions of classes that are not traced, matched from the start of the class name with slashes.
    /// Without any, agents of versions 2 to 4 hang the program (rule 5).
    pub exclusions: &'a [String],
    /// Expressions of classes that are traced although they are excluded.
    pub inclusions: &'a [String],
}

impl Configuration<'_> {
    /// Appends the whole message for an agent of protocol `version`, to be sent in one write (rule 3): a Java object
    /// for version 1, JSON text for the others (rule 4).
    ///
    /// # Errors
    /// [`TooLong`]: a length does not fit into its field; `out` is unchanged. [`check`] reports it beforehand.
    pub fn write(&self, version: u8, out: &mut BytesMut) -> Result<(), TooLong> {
        let start = out.len();
        let written = if version == 1 { self.write_java(out) } else { self.write_json(out) };
        if written.is_err() {
            out.truncate(start);
        }
        written
    }

    fn write_java(&self, out: &mut BytesMut) -> Result<(), TooLong> {
        out.put_u8(CONFIGURATION);
        let length_at = out.len();
        out.put_u32(0);
        let body_at = out.len();
        java_object(self, out)?;
        let body_bytes = out.len() - body_at;
        let length = u32::try_from(body_bytes).map_err(|_| TooLong::message(body_bytes, u32::MAX as usize))?;
        out[length_at..body_at].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    fn write_json(&self, out: &mut BytesMut) -> Result<(), TooLong> {
        let json = self.json();
        let body_bytes = mutf8::encoded_len(&json);
        let length = u16::try_from(body_bytes).map_err(|_| TooLong::message(body_bytes, MOST_TEXT_BYTES))?;
        out.put_u8(CONFIGURATION);
        out.put_u16(length);
        mutf8::write(&json, out);
        Ok(())
    }

    /// The JSON text with sorted keys and no spaces, as the original collector writes it.
    fn json(&self) -> String {
        format!(
            concat!(
                r#"{{"bufferMemoryBudget":{},"exclusions":{},"heartbeatInterval":{},"inclusions":{},"#,
                r#""numDataSenders":{},"queueRetryCount":{},"runId":{}}}"#
            ),
            self.buffer_memory_budget,
            JsonTexts(self.exclusions),
            self.heartbeat_interval_millis,
            JsonTexts(self.inclusions),
            self.data_senders,
            self.queue_retry_count,
            self.run_id,
        )
    }
}

/// Checks that these expressions fit into the message for agents of every version, with any values of the other fields.
///
/// # Errors
/// [`TooLong`]: what is too long, and its size.
pub fn check(exclusions: &[String], inclusions: &[String]) -> Result<(), TooLong> {
    let longest = Configuration {
        buffer_memory_budget: i32::MIN,
        heartbeat_interval_millis: i32::MIN,
        data_senders: i32::MIN,
        queue_retry_count: i32::MIN,
        run_id: u8::MAX,
        exclusions,
        inclusions,
    };
    let mut nowhere = BytesMut::new();
    // Version 1 first, because its error names the expression.
    longest.write(1, &mut nowhere)?;
    longest.write(2, &mut nowhere)
}

/// A configuration that does not fit into its message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TooLong {
    /// What is too long, for example `expression 3 of exclusions`.
    pub what: String,
    /// Its size as sent, in bytes.
    pub bytes: usize,
    /// The largest size.
    pub limit: usize,
}

impl TooLong {
    fn message(bytes: usize, limit: usize) -> Self {
        TooLong { what: "the configuration with all its expressions".to_owned(), bytes, limit }
    }
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooLong { what, bytes, limit } = self;
        write!(f, "{what} takes {bytes} bytes; an agent can be sent {limit} at most")
    }
}

impl std::error::Error for TooLong {}

/// The message type.
const CONFIGURATION: u8 = 1;

/// The greatest length in 16 bits.
const MOST_TEXT_BYTES: usize = u16::MAX as usize;

/// Appends the Java serialization of the configuration class of the agent. Its only references are the two constants
/// below, so objects need not be numbered.
fn java_object(configuration: &Configuration<'_>, out: &mut BytesMut) -> Result<(), TooLong> {
    out.put_slice(&[0xAC, 0xED, 0, 5, OBJECT]);
    java_class(out);
    out.put_i32(configuration.buffer_memory_budget);
    out.put_i32(configuration.heartbeat_interval_millis);
    out.put_i32(configuration.data_senders);
    out.put_i32(configuration.queue_retry_count);
    out.put_u8(configuration.run_id);

    out.put_slice(&[OBJECT, CLASS]);
    java_name("java.util.ArrayList", out);
    out.put_u64(0x7881_D21D_99C7_619D);
    out.put_u8(SERIALIZABLE | WRITES_ITSELF);
    out.put_u16(1);
    out.put_u8(b'I');
    java_name("size", out);
    out.put_slice(&[END, NULL]);
    java_list("exclusions", configuration.exclusions, out)?;

    out.put_u8(OBJECT);
    out.put_slice(&ARRAY_LIST_CLASS);
    java_list("inclusions", configuration.inclusions, out)
}

/// Appends the class descriptor. With the name that later agents have for the same class, an agent of version 1 aborts
/// its JVM (section 1.4).
fn java_class(out: &mut BytesMut) {
    out.put_u8(CLASS);
    java_name("com.secdec.bytefrog.common.config.RuntimeAgentConfigurationV1", out);
    out.put_u64(0xBF53_EFB7_761D_26C2);
    out.put_u8(SERIALIZABLE);
    out.put_u16(7);
    for (kind, name) in [
        (b'I', "bufferMemoryBudget"),
        (b'I', "heartbeatInterval"),
        (b'I', "numDataSenders"),
        (b'I', "queueRetryCount"),
        (b'B', "runId"),
    ] {
        out.put_u8(kind);
        java_name(name, out);
    }
    out.put_u8(b'L');
    java_name("exclusions", out);
    out.put_u8(TEXT);
    java_name("Ljava/util/List;", out);
    out.put_u8(b'L');
    java_name("inclusions", out);
    out.put_slice(&LIST_TYPE_NAME);
    out.put_slice(&[END, NULL]);
}

/// Appends the body and the end of a list.
fn java_list(name: &str, texts: &[String], out: &mut BytesMut) -> Result<(), TooLong> {
    // A longer list makes a message of over 4 GiB, which the caller rejects.
    let count = texts.len() as u32;
    out.put_u32(count);
    out.put_slice(&[BLOCK, 4]);
    out.put_u32(count);
    for (at, text) in texts.iter().enumerate() {
        let bytes = mutf8::encoded_len(text);
        let length = u16::try_from(bytes).map_err(|_| TooLong {
            what: format!("expression {} of {name}", at + 1),
            bytes,
            limit: MOST_TEXT_BYTES,
        })?;
        out.put_u8(TEXT);
        out.put_u16(length);
        mutf8::write(text, out);
    }
    out.put_u8(END);
    Ok(())
}

/// Appends one of the names above, which are short ASCII.
fn java_name(name: &'static str, out: &mut BytesMut) {
    out.put_u16(name.len() as u16);
    out.put_slice(name.as_bytes());
}

/// Tags of Java's object serialization.
const NULL: u8 = 0x70;
const CLASS: u8 = 0x72;
const OBJECT: u8 = 0x73;
const TEXT: u8 = 0x74;
const BLOCK: u8 = 0x77;
const END: u8 = 0x78;

/// Flags of a class descriptor.
const WRITES_ITSELF: u8 = 1;
const SERIALIZABLE: u8 = 2;

/// References to the second and the fourth object of the stream.
const LIST_TYPE_NAME: [u8; 5] = [0x71, 0, 0x7E, 0, 1];
const ARRAY_LIST_CLASS: [u8; 5] = [0x71, 0, 0x7E, 0, 3];

/// Texts as a JSON array.
struct JsonTexts<'a>(&'a [String]);

impl fmt::Display for JsonTexts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (at, text) in self.0.iter().enumerate() {
            f.write_str(if at == 0 { "\"" } else { ",\"" })?;
            for character in text.chars() {
                match character {
                    '"' | '\\' => write!(f, "\\{character}")?,
                    '\0'..='\u{1f}' => write!(f, "\\u{:04x}", u32::from(character))?,
                    _ => write!(f, "{character}")?,
                }
            }
            f.write_str("\"")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const DEFAULT: Configuration<'static> = Configuration {
        buffer_memory_budget: 25_600,
        heartbeat_interval_millis: 1_000,
        data_senders: 1,
        queue_retry_count: 5,
        run_id: 7,
        exclusions: &[],
        inclusions: &[],
    };

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn message(configuration: &Configuration<'_>, version: u8) -> Vec<u8> {
        let mut out = BytesMut::new();
        configuration.write(version, &mut out).unwrap();
        out.to_vec()
    }

    /// Compares the message with a recorded Java object and recorded JSON.
    fn assert_is_recorded(configuration: &Configuration<'_>, java: &str, json: &str) {
        let (java, json) = (recorded(java), recorded(json));
        let framed = |length: &[u8], body: &[u8]| [&[1], length, body].concat();
        assert_eq!(message(configuration, 1), framed(&(java.len() as u32).to_be_bytes(), &java));
        for version in 2..=4 {
            assert_eq!(message(configuration, version), framed(&(json.len() as u16).to_be_bytes(), &json));
        }
    }

    fn recorded(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/bytefrog/configuration");
        std::fs::read(format!("{folder}/{name}")).unwrap()
    }

    #[test]
    fn every_recorded_configuration_is_written_byte_by_byte() {
        assert_is_recorded(&DEFAULT, "v1-default.ser", "v2-v3-v4-default.json");

        let (exclusions, inclusions) = (texts(&[".*"]), texts(&["^demo/[^/]+$"]));
        let demo = Configuration {
            heartbeat_interval_millis: 200,
            data_senders: 3,
            exclusions: &exclusions,
            inclusions: &inclusions,
            ..DEFAULT
        };
        assert_is_recorded(&demo, "v1-demo.ser", "v2-v3-v4-demo.json");
        assert_eq!(message(&demo, 1), recorded("v1-demo.message.bin"));
        assert_eq!(message(&demo, 3), recorded("v2-v3-v4-demo.message.bin"));

        let run9 = Configuration { heartbeat_interval_millis: 100, data_senders: 1, run_id: 9, ..demo };
        assert_is_recorded(&run9, "v1-demo-run9.ser", "v2-v3-v4-demo-run9.json");

        let exclusions = texts(&["^(java|javax|jdk|sun|com/sun)/", ".*"]);
        let inclusions = texts(&["^com/example/gr\u{f6}\u{df}e/[^/]+$", "^com/example/shop/[^/]+$"]);
        let two_packages = Configuration {
            buffer_memory_budget: 4 << 20,
            data_senders: 2,
            run_id: 42,
            exclusions: &exclusions,
            inclusions: &inclusions,
            ..DEFAULT
        };
        assert_is_recorded(&two_packages, "v1-two-packages.ser", "v2-v3-v4-two-packages.json");
    }

    #[test]
    fn a_message_is_appended_and_a_failed_one_changes_nothing() {
        let mut out = BytesMut::from("before");
        DEFAULT.write(2, &mut out).unwrap();
        assert!(out.starts_with(b"before\x01"));
        let before = out.clone();
        let long = texts(&[&"x".repeat(65_536)]);
        for version in 1..=4 {
            assert!(Configuration { exclusions: &long, ..DEFAULT }.write(version, &mut out).is_err());
            assert_eq!(out, before);
        }
    }

    #[test]
    fn one_expression_has_65535_bytes_at_most_as_sent() {
        let longest = texts(&["ok", &"\u{1f600}".repeat(10_922)]);
        assert!(Configuration { inclusions: &longest, ..DEFAULT }.write(1, &mut BytesMut::new()).is_ok());
        let longer = texts(&["ok", &"\u{1f600}".repeat(10_923)]);
        let error = check(&[], &longer).unwrap_err();
        assert_eq!(
            error.to_string(),
            "expression 2 of inclusions takes 65538 bytes; an agent can be sent 65535 at most"
        );
    }

    #[test]
    fn the_json_has_65535_bytes_at_most_and_the_check_assumes_the_longest_numbers() {
        // With the longest numbers the rest of the text takes 171 bytes.
        let fits = 65_535 - 171;
        for (bytes, expected) in [(fits, true), (fits + 1, false)] {
            let exclusions = texts(&[&"x".repeat(bytes)]);
            assert_eq!(check(&exclusions, &[]).is_ok(), expected, "{bytes}");
        }
        let error = check(&texts(&[&"x".repeat(fits + 1)]), &[]).unwrap_err();
        assert_eq!((error.bytes, error.limit), (65_536, 65_535));
        assert!(error.to_string().starts_with("the configuration with all its expressions takes"), "{error}");
    }

    proptest! {
        #[test]
        fn json_has_all_seven_fields_unchanged(
            numbers in any::<[i32; 4]>(),
            run_id in 0u8..128,
            exclusions in vec(any::<String>(), 0..4),
            inclusions in vec(any::<String>(), 0..4),
        ) {
            let configuration = Configuration {
                buffer_memory_budget: numbers[0],
                heartbeat_interval_millis: numbers[1],
                data_senders: numbers[2],
                queue_retry_count: numbers[3],
                run_id,
                exclusions: &exclusions,
                inclusions: &inclusions,
            };
            let message = message(&configuration, 2);
            let (text, repair) = mutf8::read(&message[3..]);
            prop_assert_eq!(repair, mutf8::Repair::None);
            let expected = json!({
                "bufferMemoryBudget": numbers[0],
                "exclusions": exclusions,
                "heartbeatInterval": numbers[1],
                "inclusions": inclusions,
                "numDataSenders": numbers[2],
                "queueRetryCount": numbers[3],
                "runId": run_id,
            });
            prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        }
    }
}
