//! Values of Fressian → values of events.

use std::borrow::Cow;

use tributary_codec::fressian::{
    Definitions as FressianDefinitions, Extended, FressianError, FressianErrorKind, FressianItem, FressianReader,
    joined,
};
use tributary_codec::mutf8::{self, Repair};
use tributary_event::{BatchBuilder, Key, Text, Value, semconv, write_hex};

use super::super::fressian::structs::{Tag, expected, pairs};
use super::super::reserved::is_reserved;
use super::super::symbols::placeholder;
use super::super::wire::{MAX_VALUE_DEPTH, TextOrSymbol};
use super::{MAX_KEY_BYTES, Member, ValueTarget, Writer};

/// Bytes of a big number that is shown in decimal digits; a longer one is shown in hexadecimal digits.
const MAX_DECIMAL_BYTES: usize = 64;

/// Checks the map of attributes that follows: reading it again cannot fail.
///
/// # Errors
/// It cannot be read, or nests too deeply.
pub(in super::super) fn check_attributes(
    reader: &mut FressianReader<'_>,
    known: &mut FressianDefinitions,
) -> Result<(), FressianError> {
    let mut left = pairs(reader, known)?;
    while next(reader, &mut left)? {
        check(reader, known, MAX_VALUE_DEPTH)?;
    }
    Ok(())
}

/// Checks a value, in which `depth` levels may be.
fn check(reader: &mut FressianReader<'_>, known: &mut FressianDefinitions, depth: usize) -> Result<(), FressianError> {
    let before = *reader;
    let deeper = || depth.checked_sub(1).ok_or(too_deep(&before));
    match reader.item(known)? {
        FressianItem::List(mut left) => {
            let depth = deeper()?;
            while next(reader, &mut left)? {
                check(reader, known, depth)?;
            }
        }
        FressianItem::Array(_, values) | FressianItem::Struct(_, values) => {
            let depth = deeper()?;
            for _ in 0..values {
                check(reader, known, depth)?;
            }
        }
        FressianItem::Extended(kind) => {
            let depth = deeper()?;
            let inner = *reader;
            let at = |is_it: bool, what| if is_it { Ok(()) } else { Err(expected(inner.offset(), what)) };
            match kind {
                Extended::Map | Extended::Set => {
                    let item = { *reader }.item(known)?;
                    at(matches!(item, FressianItem::List(_)), "a list")?;
                    at(kind == Extended::Set || !matches!(item, FressianItem::List(Some(n)) if n % 2 == 1), "pairs")?;
                    let mut left = list(reader, known)?;
                    let mut count = 0u64;
                    while next(reader, &mut left)? {
                        check(reader, known, depth)?;
                        count += 1;
                    }
                    at(kind == Extended::Set || count.is_multiple_of(2), "pairs")?;
                }
                _ => {
                    for _ in 0..kind.values() {
                        check(reader, known, depth)?;
                    }
                }
            }
        }
        FressianItem::End | FressianItem::Reset | FressianItem::Footer => {
            return Err(FressianError { offset: before.offset(), fault: FressianErrorKind::Misplaced });
        }
        _ => {}
    }
    Ok(())
}

fn too_deep(reader: &FressianReader<'_>) -> FressianError {
    FressianError { offset: reader.offset(), fault: FressianErrorKind::TooDeep(MAX_VALUE_DEPTH) }
}

/// The head of a list.
fn list(reader: &mut FressianReader<'_>, known: &mut FressianDefinitions) -> Result<Option<u64>, FressianError> {
    let offset = reader.offset();
    match reader.item(known)? {
        FressianItem::List(left) => Ok(left),
        _ => Err(expected(offset, "a list")),
    }
}

/// Whether a further value follows in a list; its end is consumed.
fn next(reader: &mut FressianReader<'_>, left: &mut Option<u64>) -> Result<bool, FressianError> {
    super::super::fressian::structs::next_of(reader, left)
}

impl Writer {
    /// Adds the attributes that begin at `offset` of the packet to `members`.
    ///
    /// # Errors
    /// The bytes were not checked before.
    pub(in super::super) fn fressian_attributes(
        &mut self,
        body: &[u8],
        offset: usize,
        known: &mut FressianDefinitions,
        members: &mut Vec<Member>,
        place: &mut ValueTarget<'_, '_>,
    ) -> Result<(), FressianError> {
        let mut reader = FressianReader::at(body, offset);
        let mut left = pairs(&mut reader, known)?;
        while next(&mut reader, &mut left)? {
            let start = reader.offset();
            let key = match reader.item(known)? {
                FressianItem::Integer(id) => self.key(TextOrSymbol::Symbol(id as u64), body, place),
                item => self.fressian_key(item, &body[start..reader.offset()], true, place),
            };
            next(&mut reader, &mut left)?;
            let value = self.fressian_value(&mut reader, known, place)?;
            members.push(self.member(key.0, key.1, value, place.batch));
        }
        Ok(())
    }

    /// A member with a text.
    pub(in super::super) fn text_member(&mut self, key: &str, value: &str, place: &mut ValueTarget<'_, '_>) -> Member {
        let (hash, key) = self.key(TextOrSymbol::Text(Cow::Borrowed(key.as_bytes())), &[], place);
        let value = place.batch.push_text(value).into();
        Member { hash, key, value }
    }

    /// Writes the next value. It is nested at most [`MAX_VALUE_DEPTH`] deep, and so are the calls.
    fn fressian_value(
        &mut self,
        reader: &mut FressianReader<'_>,
        known: &mut FressianDefinitions,
        place: &mut ValueTarget<'_, '_>,
    ) -> Result<Value, FressianError> {
        Ok(match reader.item(known)? {
            FressianItem::Bool(truth) => truth.into(),
            FressianItem::Integer(number) => whole(number),
            FressianItem::Float(number) => f64::from(number).into(),
            FressianItem::Double(number) => number.into(),
            FressianItem::Text(text) => self.java_text(text, place.batch).into(),
            FressianItem::TextChunks(chunks) => self.java_text(&joined(chunks), place.batch).into(),
            FressianItem::Bytes(bytes) => place.batch.bytes(bytes),
            FressianItem::BytesChunks(chunks) => place.batch.bytes(&joined(chunks)),
            FressianItem::List(left) => self.fressian_values(left, reader, known, place)?,
            FressianItem::Array(_, values) => self.fressian_values(Some(values), reader, known, place)?,
            FressianItem::Struct(tag, values) => {
                let before = *reader;
                let is_tagged = Tag::of(tag) == Tag::Tagged && values == 2;
                if is_tagged && let FressianItem::Integer(id) = reader.item(known)? {
                    // The agent does not define it, unless something else uses the same symbol.
                    let tag = self.known_symbol(id as u64, place);
                    let inner = self.fressian_value(reader, known, place)?;
                    return Ok(tagged(tag, inner, place.batch));
                }
                *reader = before;
                let tag = self.java_text(tag, place.batch).into();
                let inner = self.fressian_values(Some(values), reader, known, place)?;
                tagged(tag, inner, place.batch)
            }
            FressianItem::Extended(kind) => self.extended(kind, reader, known, place)?,
            FressianItem::Null | FressianItem::End | FressianItem::Reset | FressianItem::Footer => Value::Null,
        })
    }

    fn fressian_values(
        &mut self,
        mut left: Option<u64>,
        reader: &mut FressianReader<'_>,
        known: &mut FressianDefinitions,
        place: &mut ValueTarget<'_, '_>,
    ) -> Result<Value, FressianError> {
        let start = self.items.len();
        while next(reader, &mut left)? {
            let value = self.fressian_value(reader, known, place)?;
            self.items.push(value);
        }
        let value = place.batch.array(&self.items[start..]);
        self.items.truncate(start);
        Ok(value)
    }

    fn extended(
        &mut self,
        kind: Extended,
        reader: &mut FressianReader<'_>,
        known: &mut FressianDefinitions,
        place: &mut ValueTarget<'_, '_>,
    ) -> Result<Value, FressianError> {
        if kind == Extended::Map {
            return self.fressian_map(reader, known, place);
        }
        let start = *reader;
        let item = { start }.item(known)?;
        let bytes = match &item {
            FressianItem::Bytes(bytes) => Some(*bytes),
            _ => None,
        };
        let text = match (kind, bytes) {
            (Extended::Uuid, Some(bytes)) if bytes.len() == 16 => Some(uuid(bytes)),
            (Extended::BigInteger, Some(bytes)) => Some(decimal(bytes)),
            (Extended::BigDecimal, Some(bytes)) => {
                let mut after = start;
                after.item(known)?;
                match after.item(known)? {
                    FressianItem::Integer(scale) => Some(with_scale(&decimal(bytes), scale)),
                    _ => None,
                }
            }
            _ => None,
        };
        let value = self.fressian_value(reader, known, place)?;
        if let Some(text) = text {
            if kind == Extended::BigDecimal {
                reader.item(known)?;
            }
            return Ok(place.batch.push_text(&text).into());
        }
        let name = match kind {
            Extended::Map | Extended::Set | Extended::Uri | Extended::Regex => return Ok(value),
            Extended::Instant => "instant",
            Extended::Uuid => "uuid",
            Extended::BigInteger => "bigint",
            Extended::BigDecimal => "bigdec",
            Extended::Symbol => "symbol",
            Extended::Keyword => "key",
        };
        let value = match kind.values() {
            2 => {
                let second = self.fressian_value(reader, known, place)?;
                place.batch.array(&[value, second])
            }
            _ => value,
        };
        let name = place.batch.push_text(name).into();
        Ok(tagged(name, value, place.batch))
    }

    fn fressian_map(
        &mut self,
        reader: &mut FressianReader<'_>,
        known: &mut FressianDefinitions,
        place: &mut ValueTarget<'_, '_>,
    ) -> Result<Value, FressianError> {
        let mut left = list(reader, known)?;
        let mut members = Vec::new();
        while next(reader, &mut left)? {
            let start = reader.offset();
            let mut end = *reader;
            end.skip(MAX_VALUE_DEPTH, known)?;
            let item = reader.item(known)?;
            let bytes = reader.whole().get(start..end.offset()).unwrap_or_default();
            let (hash, key) = self.fressian_key(item, bytes, false, place);
            *reader = end;
            next(reader, &mut left)?;
            let value = self.fressian_value(reader, known, place)?;
            members.push(self.member(hash, key, value, place.batch));
        }
        self.keep_last(&mut members);
        let members: Vec<(Key, Value)> = members.iter().map(|member| (Key::from(member.key), member.value)).collect();
        Ok(place.batch.map(&members))
    }

    /// A key that is no symbol. `bytes` are those of the whole key.
    fn fressian_key(
        &mut self,
        item: FressianItem<'_>,
        bytes: &[u8],
        is_outermost: bool,
        place: &mut ValueTarget<'_, '_>,
    ) -> (u64, Text) {
        let text = match item {
            FressianItem::Text(text) => self.java(text).into_owned(),
            FressianItem::TextChunks(chunks) => self.java(&joined(chunks)).into_owned(),
            FressianItem::Null => "null".to_owned(),
            FressianItem::Bool(truth) => truth.to_string(),
            FressianItem::Integer(number) => number.to_string(),
            FressianItem::Float(number) => number.to_string(),
            FressianItem::Double(number) => number.to_string(),
            _ => {
                let mut text = String::from("fressian:");
                let _ = write_hex(&mut text, &bytes[..bytes.len().min(MAX_KEY_BYTES)]);
                text
            }
        };
        let is_moved = is_outermost && is_reserved(&text);
        let prefix = if is_moved { semconv::ZICO_ATTRIBUTE.as_str() } else { "" };
        (std::hash::BuildHasher::hash_one(&self.hasher, text.as_str()), place.batch.push_parts(&[prefix, &text]))
    }

    /// The text of a symbol, which need not be defined.
    fn known_symbol(&mut self, id: u64, place: &mut ValueTarget<'_, '_>) -> Value {
        match place.symbols.string(id) {
            Some(_) => self.symbol(id, place).text.into(),
            None => place.batch.push_text(&placeholder(id)).into(),
        }
    }

    fn java<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, str> {
        let (text, repair) = mutf8::read(bytes);
        self.is_repaired |= repair != Repair::None;
        text
    }

    fn java_text(&mut self, bytes: &[u8], batch: &mut BatchBuilder) -> Text {
        let text = self.java(bytes);
        batch.push_text(&text)
    }
}

fn whole(number: i64) -> Value {
    u64::try_from(number).map_or(Value::I64(number), Value::from)
}

fn tagged(tag: Value, value: Value, batch: &mut BatchBuilder) -> Value {
    let keys = [batch.push_text("tag"), batch.push_text("value")];
    batch.map(&[(keys[0].into(), tag), (keys[1].into(), value)])
}

fn uuid(bytes: &[u8]) -> String {
    let mut text = String::new();
    let _ = write_hex(&mut text, bytes);
    for place in [20, 16, 12, 8] {
        text.insert(place, '-');
    }
    text
}

/// A big number, of two's complement, in decimal digits.
fn decimal(bytes: &[u8]) -> String {
    if bytes.len() > MAX_DECIMAL_BYTES {
        let mut text = String::from("0x");
        let _ = write_hex(&mut text, bytes);
        return text;
    }
    let is_negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let mut digits = vec![0u8];
    for byte in bytes {
        // Of a negative number: the digits of −1 − n.
        let mut carry = u32::from(if is_negative { !*byte } else { *byte });
        for digit in &mut digits {
            let value = u32::from(*digit) * 256 + carry;
            (*digit, carry) = ((value % 10) as u8, value / 10);
        }
        while carry > 0 {
            digits.push((carry % 10) as u8);
            carry /= 10;
        }
    }
    if is_negative {
        // n = −(digits + 1).
        let nines = digits.iter().take_while(|digit| **digit == 9).count();
        digits[..nines].fill(0);
        match digits.get_mut(nines) {
            Some(digit) => *digit += 1,
            None => digits.push(1),
        }
    }
    let sign = if is_negative { "-" } else { "" };
    sign.chars().chain(digits.iter().rev().map(|digit| char::from(b'0' + digit))).collect()
}

/// A decimal number with this many digits behind the point.
fn with_scale(unscaled: &str, scale: i64) -> String {
    let (sign, digits) = unscaled.strip_prefix('-').map_or(("", unscaled), |digits| ("-", digits));
    match usize::try_from(scale) {
        Ok(0) => unscaled.to_owned(),
        Ok(scale @ 1..=MAX_DECIMAL_BYTES) if !digits.starts_with("0x") => {
            let digits = format!("{digits:0>width$}", width = scale + 1);
            let (whole, fraction) = digits.split_at(digits.len() - scale);
            format!("{sign}{whole}.{fraction}")
        }
        _ => format!("{unscaled}E{}", scale.saturating_neg()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_numbers_are_shown_in_decimal_digits() {
        for number in [0i128, 1, -1, 127, 128, -128, -129, 255, 256, i128::from(i64::MIN), 123_456_789_012_345_678_901]
        {
            assert_eq!(decimal(&number.to_be_bytes()), number.to_string());
        }
        assert_eq!(decimal(&[]), "0");
        assert_eq!(decimal(&[0x80]), "-128");
        assert_eq!(decimal(&[1; 65]), format!("0x{}", "01".repeat(65)));
        for (unscaled, scale, shown) in [
            ("1250", 2, "12.50"),
            ("-5", 3, "-0.005"),
            ("7", 0, "7"),
            ("7", -3, "7E3"),
            ("7", 1000, "7E-1000"),
            ("7", i64::MIN, "7E9223372036854775807"),
        ] {
            assert_eq!(with_scale(unscaled, scale), shown);
        }
    }
}
