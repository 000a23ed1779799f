//! Old clients send JSON. It is written as MessagePack, so that the same readers decode it.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use tributary_protocol::JSON_NUMBER;

/// The same values as MessagePack; at most three times as long, for a number of one digit takes a byte and a comma.
pub(super) fn to_msgpack(json: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let mut out = Vec::with_capacity(json.len());
    let mut reader = serde_json::Deserializer::from_slice(json);
    ValueWriter(&mut out).deserialize(&mut reader).and_then(|()| reader.end())?;
    Ok(out)
}

/// Writes a value. Nesting is limited by the JSON reader.
struct ValueWriter<'a>(&'a mut Vec<u8>);

impl ValueWriter<'_> {
    fn push(&mut self, head: u8, rest: &[u8]) {
        self.0.push(head);
        self.0.extend_from_slice(rest);
    }

    fn number<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if let Ok(number) = text.parse() {
            self.visit_u64(number)
        } else if let Ok(number) = text.parse() {
            self.visit_i64(number)
        } else {
            self.visit_f64(text.parse().map_err(E::custom)?)
        }
    }

    /// Begins an array or a map; returns where its number of elements is set.
    fn begin(&mut self, head: u8) -> usize {
        self.push(head, &[0; 4]);
        self.0.len() - 4
    }

    fn end(&mut self, place: usize, count: u32) {
        self.0[place..place + 4].copy_from_slice(&count.to_be_bytes());
    }
}

impl<'de> DeserializeSeed<'de> for ValueWriter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueWriter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(mut self) -> Result<(), E> {
        self.push(0xC0, &[]);
        Ok(())
    }

    fn visit_bool<E>(mut self, value: bool) -> Result<(), E> {
        self.push(0xC2 + u8::from(value), &[]);
        Ok(())
    }

    fn visit_u64<E>(mut self, number: u64) -> Result<(), E> {
        match u8::try_from(number) {
            Ok(small @ 0..=0x7F) => self.push(small, &[]),
            _ => self.push(0xCF, &number.to_be_bytes()),
        }
        Ok(())
    }

    fn visit_i64<E>(mut self, number: i64) -> Result<(), E> {
        self.push(0xD3, &number.to_be_bytes());
        Ok(())
    }

    fn visit_f64<E>(mut self, number: f64) -> Result<(), E> {
        self.push(0xCB, &number.to_bits().to_be_bytes());
        Ok(())
    }

    fn visit_str<E>(mut self, text: &str) -> Result<(), E> {
        match u8::try_from(text.len()) {
            Ok(length @ 0..=31) => self.push(0xA0 | length, text.as_bytes()),
            // A body has less than 4 GiB.
            _ => {
                self.push(0xDB, &(text.len() as u32).to_be_bytes());
                self.0.extend_from_slice(text.as_bytes());
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        let (place, mut count) = (self.begin(0xDD), 0);
        while items.next_element_seed(ValueWriter(self.0))?.is_some() {
            count += 1;
        }
        self.end(place, count);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        let start = self.0.len();
        let (place, mut count) = (self.begin(0xDF), 0);
        while members.next_key_seed(ValueWriter(self.0))?.is_some() {
            if count == 0 && self.0[place + 4..].ends_with(JSON_NUMBER.as_bytes()) {
                let number: String = members.next_value()?;
                self.0.truncate(start);
                return self.number(&number);
            }
            members.next_value_seed(ValueWriter(self.0))?;
            count += 1;
        }
        self.end(place, count);
        Ok(())
    }
}
