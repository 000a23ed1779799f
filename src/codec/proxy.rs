//! PROXY protocol headers, versions 1 and 2: the information of a load balancer about a connection, sent before the data of
//! the connection (HAProxy's `proxy-protocol.txt`, whose sections are cited).
//!
//! The type-length-values after the addresses of version 2 are skipped, including the checksum: TCP has its own.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The longest accepted header, in bytes. Version 1 has at most 107. In version 2 the addresses have 52; the rest is for
/// type-length-values of balancers.
pub const MAX_BYTES: usize = 4096;

/// The first bytes of a header of version 1.
const TEXT: &[u8] = b"PROXY ";
/// The first bytes of a header of version 2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The longest header of version 1, its line end included (2.1).
const MAX_TEXT_BYTES: usize = 107;
/// Bytes of version 2 up to the end of the length field.
const FIXED_BYTES: usize = 16;

/// A complete header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Its length in bytes; the data of the connection follow.
    pub length: usize,
    /// The source of the proxied connection. `None`: the proxy itself, or a source without IP address and TCP port.
    pub source: Option<SocketAddr>,
}

/// Why bytes are not a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProxyError {
    /// Offset in the bytes.
    pub offset: usize,
    /// What is wrong, and the section with the rule.
    pub what: &'static str,
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PROXY header, at {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for ProxyError {}

/// Reads the header at the front of `bytes`. `None`: it is incomplete and valid so far.
///
/// # Errors
/// No header has these first bytes. Reported at the first wrong byte.
pub fn read(input: &[u8]) -> Result<Option<Header>, ProxyError> {
    if input.first() == SIGNATURE.first() {
        begins_with(input, SIGNATURE, "this is not the signature of version 2 (2.2)")?;
        binary(input)
    } else {
        begins_with(input, TEXT, "neither `PROXY ` (2.1) nor the signature of version 2 (2.2)")?;
        text(input)
    }
}

fn begins_with(input: &[u8], wanted: &[u8], what: &'static str) -> Result<(), ProxyError> {
    match input.iter().zip(wanted).position(|(is, wanted)| is != wanted) {
        Some(offset) => Err(ProxyError { offset, what }),
        None => Ok(()),
    }
}

/// Version 1: a line.
fn text(input: &[u8]) -> Result<Option<Header>, ProxyError> {
    let Some(end) = input.iter().take(MAX_TEXT_BYTES).position(|byte| *byte == b'\n') else {
        let is_too_long = input.len() >= MAX_TEXT_BYTES;
        let what = "a header of version 1 ends within 107 bytes (2.1)";
        return if is_too_long { Err(ProxyError { offset: MAX_TEXT_BYTES, what }) } else { Ok(None) };
    };
    let line = input[..end].strip_suffix(b"\r");
    let line = line.ok_or(ProxyError { offset: end, what: "a line feed without its carriage return (2.1)" })?;
    let mut words = Words { line, offset: TEXT.len() };
    let family = words.next();
    let source = match line.get(family.0..family.1) {
        Some(b"TCP4") => Some(words.addresses::<Ipv4Addr>()?),
        Some(b"TCP6") => Some(words.addresses::<Ipv6Addr>()?),
        // The rest of the line is ignored.
        Some(b"UNKNOWN") => None,
        _ => return Err(ProxyError { offset: family.0, what: "neither TCP4 nor TCP6 nor UNKNOWN (2.1)" }),
    };
    Ok(Some(Header { length: end + 1, source }))
}

/// Words separated by single spaces.
struct Words<'a> {
    line: &'a [u8],
    offset: usize,
}

impl Words<'_> {
    /// The range of the next word.
    fn next(&mut self) -> (usize, usize) {
        let begin = self.offset.min(self.line.len());
        let length = self.line[begin..].iter().position(|byte| *byte == b' ');
        let end = length.map_or(self.line.len(), |length| begin + length);
        self.offset = end + 1;
        (begin, end)
    }

    fn read<T: FromStr>(&mut self, what: &'static str) -> Result<T, ProxyError> {
        let (begin, end) = self.next();
        let word = std::str::from_utf8(&self.line[begin..end]).ok();
        word.and_then(|word| word.parse().ok()).ok_or(ProxyError { offset: begin, what })
    }

    /// The rest of the line: both addresses, both ports. Returns the source.
    fn addresses<A: FromStr + Into<IpAddr>>(&mut self) -> Result<SocketAddr, ProxyError> {
        let address = self.read::<A>("not an address of its family (2.1)")?;
        self.read::<A>("not an address of its family (2.1)")?;
        let Port(port) = self.read("not a port (2.1)")?;
        let Port(_) = self.read("not a port (2.1)")?;
        if self.offset <= self.line.len() {
            return Err(ProxyError { offset: self.offset - 1, what: "something behind the last port (2.1)" });
        }
        Ok(SocketAddr::new(address.into(), port))
    }
}

/// A port as version 1 writes it: digits without leading zeros.
struct Port(u16);

impl FromStr for Port {
    type Err = ();

    fn from_str(text: &str) -> Result<Port, ()> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        if is_plain { text.parse().map(Port).map_err(drop) } else { Err(()) }
    }
}

/// Version 2.
fn binary(input: &[u8]) -> Result<Option<Header>, ProxyError> {
    let Some(&[command, family]) = input.get(SIGNATURE.len()..SIGNATURE.len() + 2) else {
        let command = input.get(SIGNATURE.len()).copied();
        return command.map_or(Ok(()), check_command).map(|()| None);
    };
    check_command(command)?;
    let is_local = command == 0x20;
    // A LOCAL connection of the proxy may name any family (2.2).
    if !is_local && (family >> 4 > 3 || family & 0xF > 2) {
        return Err(ProxyError {
            offset: 13,
            what: "an address family or transport that version 2 does not have (2.2)",
        });
    }
    let Some(&[high, low]) = input.get(14..FIXED_BYTES) else { return Ok(None) };
    let rest = usize::from(u16::from_be_bytes([high, low]));
    let length = FIXED_BYTES + rest;
    if length > MAX_BYTES {
        return Err(ProxyError { offset: 14, what: "it would be longer than the 4096 bytes that are taken" });
    }
    let least = match family >> 4 {
        1 => 12,
        2 => 36,
        3 => 216,
        _ => 0,
    };
    if !is_local && rest < least {
        return Err(ProxyError { offset: 14, what: "it is too short for the addresses of its family (2.2)" });
    }
    let Some(addresses) = input.get(FIXED_BYTES..length) else { return Ok(None) };
    let source = match (command, family) {
        (0x21, 0x11) => source::<4>(addresses),
        (0x21, 0x21) => source::<16>(addresses),
        _ => None,
    };
    Ok(Some(Header { length, source }))
}

fn check_command(byte: u8) -> Result<(), ProxyError> {
    match byte {
        0x20 | 0x21 => Ok(()),
        _ if byte >> 4 == 2 => Err(ProxyError { offset: 12, what: "a command other than LOCAL and PROXY (2.2)" }),
        _ => Err(ProxyError { offset: 12, what: "a version other than 2 (2.2)" }),
    }
}

/// Source and destination of `N` bytes each, then their ports.
fn source<const N: usize>(addresses: &[u8]) -> Option<SocketAddr>
where
    IpAddr: From<[u8; N]>,
{
    let address: [u8; N] = *addresses.first_chunk()?;
    let port = *addresses.get(2 * N..)?.first_chunk()?;
    Some(SocketAddr::new(address.into(), u16::from_be_bytes(port)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proxy_header::{ParseConfig, ProxiedAddress, ProxyHeader};

    use super::*;

    fn fault(input: &[u8]) -> usize {
        read(input).unwrap_err().offset
    }

    fn version_2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family], &length, rest].concat()
    }

    #[test]
    fn lines_of_version_1_are_read_as_the_specification_writes_them() {
        // The examples of 2.1, with the longest lines that it names.
        let cases: [(&[u8], Option<&str>); 6] = [
            (b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n", Some("192.168.0.1:56324")),
            (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", Some("255.255.255.255:65535")),
            (b"PROXY TCP6 2001:db8::1 ::1 1 0\r\n", Some("[2001:db8::1]:1")),
            (b"PROXY UNKNOWN\r\n", None),
            (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
            (b"PROXY TCP6 ::ffff:10.0.0.1 ::1 9 9\r\n", Some("[::ffff:10.0.0.1]:9")),
        ];
        for (line, source) in cases {
            let whole = Header { length: line.len(), source: source.map(|source| source.parse().unwrap()) };
            assert_eq!(read(line), Ok(Some(whole)), "{}", line.escape_ascii());
            assert_eq!(read(&[line, b"\r\nmore"].concat()), Ok(Some(whole)));
            (0..line.len()).for_each(|cut| assert_eq!(read(&line[..cut]), Ok(None), "cut at {cut}"));
        }
    }

    #[test]
    fn errors_in_a_line_name_their_offset() {
        let cases: [(&[u8], usize); 14] = [
            (b"G", 0),
            (b"PROXX", 4),
            (b"PROXY\tTCP4", 5),
            (b"PROXY TCP5 1.2.3.4 1.2.3.4 1 1\r\n", 6),
            (b"PROXY  TCP4 1.2.3.4 1.2.3.4 1 1\r\n", 6),
            (b"PROXY \r\n", 6),
            (b"PROXY UNKNOWN\n", 13),
            (b"PROXY TCP4 ::1 ::1 1 1\r\n", 11),
            (b"PROXY TCP4 1.2.3.4 1.2.3.04 1 1\r\n", 19),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 1\r\n", 27),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 01 1\r\n", 27),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", 29),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1 \r\n", 30),
            (b"PROXY TCP4 1.2.3.4\r\n", 18),
        ];
        for (line, offset) in cases {
            assert_eq!(fault(line), offset, "{}", line.escape_ascii());
        }
        let endless = [TEXT, &[b'x'; 200]].concat();
        assert_eq!(read(&endless[..106]), Ok(None));
        assert_eq!(fault(&endless[..107]), 107);
        // The line feed may be the 107th byte, and no later.
        let line = |length: usize| [b"PROXY UNKNOWN ", &vec![b'x'; length - 16][..], b"\r\n"].concat();
        assert_eq!(read(&line(107)), Ok(Some(Header { length: 107, source: None })));
        assert_eq!(fault(&line(108)), 107);
    }

    #[test]
    fn of_version_2_families_without_ip_or_tcp_leave_the_peer_as_it_is() {
        let cases: [(u8, u8, usize); 9] = [
            (0x20, 0x00, 0),
            (0x20, 0x11, 12),
            // LOCAL: the rest is ignored.
            (0x20, 0xFF, 3),
            (0x21, 0x00, 0),
            (0x21, 0x00, 40),
            (0x21, 0x12, 12),
            (0x21, 0x22, 36),
            (0x21, 0x31, 216),
            (0x21, 0x10, 12),
        ];
        for (command, family, rest) in cases {
            let header = version_2(command, family, &vec![7; rest]);
            assert_eq!(
                read(&header),
                Ok(Some(Header { length: header.len(), source: None })),
                "{command:x} {family:x}"
            );
        }
    }

    #[test]
    fn what_is_wrong_in_version_2_is_reported_as_soon_as_it_is_there() {
        assert_eq!(fault(b"\r\n\r\n\0\r\nQUIX"), 10);
        assert_eq!(fault(&[SIGNATURE, b"\x11"].concat()), 12);
        assert_eq!(fault(&[SIGNATURE, b"\x22"].concat()), 12);
        assert_eq!(fault(&[SIGNATURE, b"\x21\x41"].concat()), 13);
        assert_eq!(fault(&[SIGNATURE, b"\x21\x13"].concat()), 13);
        // Too short for its addresses, and over the limit: both are known from the length field.
        for (family, rest) in [(0x11, 11_u16), (0x21, 35), (0x31, 215), (0x11, 4081), (0x11, u16::MAX)] {
            let length = rest.to_be_bytes();
            assert_eq!(fault(&[SIGNATURE, &[0x21, family], &length].concat()), 14, "{family:x} {rest}");
        }
        assert_eq!(read(&[SIGNATURE, b"\x21\x11\x0F\xF0"].concat()), Ok(None));
    }

    fn address() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
        let v4 = |(address, port): ([u8; 4], u16)| SocketAddr::from((address, port));
        let v6 = |(address, port): ([u8; 16], u16)| SocketAddr::from((address, port));
        prop_oneof![
            any::<[([u8; 4], u16); 2]>().prop_map(move |[source, to]| (v4(source), v4(to))),
            any::<[([u8; 16], u16); 2]>().prop_map(move |[source, to]| (v6(source), v6(to))),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_shrink_iters: 500, ..ProptestConfig::default() })]

        #[test]
        fn what_another_library_writes_is_read_in_any_pieces(
            (source, to) in address(),
            value in prop::collection::vec(any::<u8>(), 0..300),
            rest in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let header = ProxyHeader::with_address(ProxiedAddress::stream(source, to));
            let (mut one, mut two) = (Vec::new(), Vec::new());
            header.encode_v1(&mut one).unwrap();
            let custom = proxy_header::Tlv::Custom(0xE0, value.into());
            let header = ProxyHeader::with_tlvs(Some(ProxiedAddress::stream(source, to)), [custom]);
            header.encode_v2(&mut two).unwrap();
            for written in [one, two] {
                let whole = Ok(Some(Header { length: written.len(), source: Some(source) }));
                prop_assert_eq!(read(&[&written[..], &rest].concat()), whole);
                (0..written.len()).for_each(|cut| assert_eq!(read(&written[..cut]), Ok(None)));
            }
        }

        #[test]
        fn what_is_read_of_damaged_headers_another_library_reads_too(
            (source, to) in address(),
            is_binary in any::<bool>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = Vec::new();
            let header = ProxyHeader::with_address(ProxiedAddress::stream(source, to));
            if is_binary { header.encode_v2(&mut bytes) } else { header.encode_v1(&mut bytes) }.unwrap();
            for (index, byte) in damage {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            if let Ok(Some(ours)) = read(&bytes) {
                let is_stream = |address: &&ProxiedAddress| address.protocol == proxy_header::Protocol::Stream;
                match ProxyHeader::parse(&bytes, ParseConfig::default()) {
                    Ok((theirs, length)) => {
                        let source = theirs.proxied_address().filter(is_stream).map(|address| address.source);
                        prop_assert_eq!(ours, Header { length, source });
                    }
                    // The library refuses a family without a transport, and other families than its own for LOCAL.
                    Err(_) => prop_assert!(is_binary && ours.source.is_none()),
                }
            }
        }

        #[test]
        fn nothing_is_read_behind_what_is_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for begin in [&b""[..], TEXT, SIGNATURE] {
                let input = [begin, &bytes].concat();
                match read(&input) {
                    Ok(Some(header)) => prop_assert!(header.length <= input.len()),
                    Ok(None) => prop_assert!(input.len() < MAX_BYTES),
                    Err(error) => prop_assert!(error.offset <= input.len()),
                }
            }
        }
    }
}
