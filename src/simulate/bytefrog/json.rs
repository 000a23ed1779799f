//! The configuration of versions 2 to 4: the necessary part of JSON, as strict as the parser of the agents.

use super::configuration::Configuration;

/// Reads the JSON text of a configuration. Unknown keys are ignored.
pub(super) fn configuration(text: &[u8]) -> Result<Configuration, String> {
    let mut numbers = [None; NUMBERS.len()];
    let mut lists = [None; LISTS.len()];
    let mut rest = Rest(text);
    rest.expect(b'{')?;
    if !rest.skip_if(b'}') {
        loop {
            let key = rest.text()?;
            rest.expect(b':')?;
            let is = |name: &&str| name.as_bytes() == key;
            if let Some(at) = NUMBERS.iter().position(is) {
                numbers[at] = Some(rest.integer(NUMBERS[at])?);
            } else if let Some(at) = LISTS.iter().position(is) {
                lists[at] = Some(rest.texts(LISTS[at])?);
            } else {
                rest.any(0)?;
            }
            if !rest.skip_if(b',') {
                break;
            }
        }
        rest.expect(b'}')?;
    }
    rest.skip_space();
    if !rest.0.is_empty() {
        return Err(format!("{} bytes too many", rest.0.len()));
    }
    let number = |at: usize| numbers[at].ok_or_else(|| format!("{} is missing", NUMBERS[at]));
    let list = |at: usize| lists[at].ok_or_else(|| format!("{} is missing", LISTS[at]));
    let run = i8::try_from(number(4)?).map_err(|_| "runId is no signed byte")?;
    Ok(Configuration {
        buffer_memory_budget: number(0)?,
        heartbeat_interval: number(1)?,
        data_senders: number(2)?,
        queue_retries: number(3)?,
        run: run as u8,
        exclusions: list(0)?,
        inclusions: list(1)?,
    })
}

const NUMBERS: [&str; 5] = ["bufferMemoryBudget", "heartbeatInterval", "numDataSenders", "queueRetryCount", "runId"];
const LISTS: [&str; 2] = ["exclusions", "inclusions"];

/// The greatest depth of the values of unknown keys.
const MOST_DEPTH: usize = 32;

/// The bytes that are not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn skip_space(&mut self) {
        self.0 = self.0.trim_ascii_start();
    }

    fn skip_if(&mut self, byte: u8) -> bool {
        self.skip_space();
        let found = self.0.first() == Some(&byte);
        self.0 = &self.0[usize::from(found)..];
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.skip_if(byte) { Ok(()) } else { Err(format!("{} should follow", char::from(byte))) }
    }

    /// A text with its escapes unchanged.
    fn text(&mut self) -> Result<&'a [u8], String> {
        self.expect(b'"')?;
        let mut at = 0;
        loop {
            match self.0.get(at) {
                None => return Err("a text has no end".to_owned()),
                Some(b'"') => break,
                Some(0..0x20) => return Err("a text holds a control character".to_owned()),
                Some(b'\\') => match self.0.get(at + 1) {
                    Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => at += 2,
                    Some(b'u')
                        if self.0.get(at + 2..at + 6).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) =>
                    {
                        at += 6;
                    }
                    _ => return Err("a text holds an unknown escape".to_owned()),
                },
                Some(_) => at += 1,
            }
        }
        let text = &self.0[..at];
        self.0 = &self.0[at + 1..];
        Ok(text)
    }

    /// An integer of 32 bits; `1.0` is none.
    fn integer(&mut self, key: &str) -> Result<i32, String> {
        let word = self.word();
        let number = str::from_utf8(word).ok().filter(|word| !word.starts_with('+')).and_then(|word| word.parse().ok());
        number.ok_or_else(|| format!("{key} is {}, and no integer", String::from_utf8_lossy(word)))
    }

    /// A list of texts, which is not null: their number.
    fn texts(&mut self, key: &str) -> Result<usize, String> {
        self.expect(b'[').map_err(|_| format!("{key} is no list"))?;
        let mut count = 0;
        if self.skip_if(b']') {
            return Ok(count);
        }
        loop {
            self.text().map_err(|fault| format!("{key}: {fault}"))?;
            count += 1;
            if !self.skip_if(b',') {
                self.expect(b']')?;
                return Ok(count);
            }
        }
    }

    /// Skips any value.
    fn any(&mut self, depth: usize) -> Result<(), String> {
        if depth > MOST_DEPTH {
            return Err("it is nested too deep".to_owned());
        }
        self.skip_space();
        let end = match self.0.first() {
            Some(b'"') => return self.text().map(drop),
            Some(b'[') => b']',
            Some(b'{') => b'}',
            _ if self.word().is_empty() => return Err("a value should follow".to_owned()),
            _ => return Ok(()),
        };
        self.0 = &self.0[1..];
        if self.skip_if(end) {
            return Ok(());
        }
        loop {
            if end == b'}' {
                self.text()?;
                self.expect(b':')?;
            }
            self.any(depth + 1)?;
            if !self.skip_if(b',') {
                return self.expect(end);
            }
        }
    }

    /// A number or a name such as `null`.
    fn word(&mut self) -> &'a [u8] {
        self.skip_space();
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let end = self.0.iter().position(|byte| !is_part(byte)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = r#"{"bufferMemoryBudget":25600,"exclusions":[".*"],"heartbeatInterval":1000,"inclusions":[],"numDataSenders":1,"queueRetryCount":5,"runId":7}"#;

    #[test]
    fn keys_may_have_any_order_with_spaces_and_unknown_keys() {
        let other = r#" { "runId" : -56 , "new" : {"a":[1.5e3,null,"x\"y"],"b":{}} , "queueRetryCount":5,"numDataSenders":1,
            "inclusions":["a\\.b","\u00fc"], "exclusions": [ ], "heartbeatInterval":1000,"bufferMemoryBudget":25600 } "#;
        let configuration = configuration(other.as_bytes()).unwrap();
        assert_eq!((configuration.run, configuration.exclusions, configuration.inclusions), (200, 0, 2));
    }

    #[test]
    fn json_that_the_parser_of_the_agents_rejects_is_rejected() {
        assert!(configuration(VALID.as_bytes()).is_ok());
        for (from, to) in [
            (r#""runId":7"#, r#""runId":200"#),
            (r#""runId":7"#, r#""runId":7.0"#),
            (r#""runId":7"#, r#""runId":null"#),
            (r#""inclusions":[]"#, r#""inclusions":null"#),
            (r#""exclusions":[".*"],"#, ""),
            (r#"[".*"]"#, r#"[null]"#),
            (r#"[".*"]"#, r#"["\d"]"#),
            (r#"[".*"]"#, r#"[".*"#),
            ("}", "}}"),
            ("}", ""),
        ] {
            let bad = VALID.replacen(from, to, 1);
            assert!(configuration(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
