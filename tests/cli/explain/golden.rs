//! Sheets that were written by hand, from the layouts in the specifications.

use std::fs;

use crate::live::binary::run;

/// The bytes of a hex text; other characters are ignored.
fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The sheets of these named files.
fn explained(arguments: &[&str], files: &[(&str, Vec<u8>)]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    files.iter().for_each(|(name, bytes)| fs::write(path(name), bytes).unwrap());
    let paths: Vec<_> = files.iter().map(|(name, _)| path(name)).collect();
    let arguments: Vec<_> = arguments.iter().copied().chain(paths.iter().map(String::as_str)).collect();
    let ended = run(&arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout.replace(&path(""), "")
}

/// Compares a sheet with `expected`, whose lines are indented.
#[track_caller]
fn assert_shown(shown: &str, expected: &str) {
    let expected: String = expected.lines().skip(1).map(|line| format!("{}\n", line.get(4..).unwrap_or(""))).collect();
    let differs = shown.lines().zip(expected.lines()).position(|(shown, expected)| shown != expected);
    assert_eq!(shown, expected, "they differ in line {differs:?}");
}

#[test]
fn datadog_objects_and_an_unknown_type() {
    let wire = "dd00 00000001 0000000000000400
        dd06 0102030405060708 00000004 73686f70
        dd02 0000000000000001 0000000000000000 000102030405060708090a0b0c0d0e0f 18e9bfe1197ca801 000000000016e360
             0102030405060708 0000000000000000 00000000000000ff 0102030405060708 01
        dd05 01 0102030405060708 00000000000000ff
        dd04 01 0102030405060708 3ff8000000000000
        dd07 3f";
    let shown = explained(&["decode", "datadog", "--explain"], &[("wire.bin", bytes(wire))]);
    assert_shown(
        &shown,
        "
              process
    00000000  dd 00                                              object_type: process
    00000002  00 00 00 01                                        protocol_version: 1
    00000006  00 00 00 00 00 00 04 00                            string_cache_size: 1024 entries
              string
    0000000e  dd 06                                              object_type: string
    00000010  01 02 03 04 05 06 07 08                            id: 0102030405060708
    00000018  00 00 00 04                                        len: 4 bytes
    0000001c  73 68 6f 70                                        characters: \"shop\"
              span
    00000020  dd 02                                              object_type: span
    00000022  00 00 00 00 00 00 00 01                            span_id: 0000000000000001
    0000002a  00 00 00 00 00 00 00 00                            parent_id: none
    00000032  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f    trace_id: 000102030405060708090a0b0c0d0e0f
    00000042  18 e9 bf e1 19 7c a8 01                            start: 2026-11-20T12:15:00.000000001Z
    0000004a  00 00 00 00 00 16 e3 60                            duration: 1.5 ms
    00000052  01 02 03 04 05 06 07 08                            name: 0102030405060708 \"shop\"
    0000005a  00 00 00 00 00 00 00 00                            type: absent
    00000062  00 00 00 00 00 00 00 ff                            resource: 00000000000000ff
    0000006a  01 02 03 04 05 06 07 08                            service: 0102030405060708 \"shop\"
    00000072  01                                                 error: 1
              metaList
    00000073  dd 05                                              object_type: metaList
    00000075  01                                                 metaLen: 1
    00000076  01 02 03 04 05 06 07 08 00 00 00 00 00 00 00 ff    meta: 0102030405060708 \"shop\" = 00000000000000ff
              metricsList
    00000086  dd 04                                              object_type: metricsList
    00000088  01                                                 metricsLen: 1
    00000089  01 02 03 04 05 06 07 08 3f f8 00 00 00 00 00 00    metric: 0102030405060708 \"shop\" = 1.5
    00000099  dd 07 3f                                         ?: not a valid object
    00000099  !! unsupported, 3 bytes lost: at 153: object_type: 0xdd07 is not supported, only dd01, dd02, dd04, dd05 and dd06
    0000009c  !! unresolved, 1 event: events were written with raw ids: their strings were never defined",
    );
}

#[test]
fn datadog_of_another_version_and_lists_of_the_other_layout() {
    let shown = explained(
        &["decode", "datadog", "--explain", "-o", "list_layout=padded32"],
        &[
            (
                "list.bin",
                [bytes("dd00 00000001 0000000000000000 dd05 01 00000000000000ff 0000000000000000"), vec![0; 496]]
                    .concat(),
            ),
            ("version.bin", bytes("dd00 00000002 0000000000000000")),
        ],
    );
    assert_shown(
        &shown,
        "
    ==> list.bin <==
              process
    00000000  dd 00                                              object_type: process
    00000002  00 00 00 01                                        protocol_version: 1
    00000006  00 00 00 00 00 00 00 00                            string_cache_size: 0 entries
              metaList
    0000000e  dd 05                                              object_type: metaList
    00000010  01                                                 metaLen: 1
    00000011  00 00 00 00 00 00 00 ff 00 00 00 00 00 00 00 00    meta: 00000000000000ff = absent
    00000021  00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00    unused
    00000031  00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00000041  00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00000051  00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
              … 432 bytes more
    00000211  !! unresolved, 1 event: events were written with raw ids: their strings were never defined

    ==> version.bin <==
              process
    00000000  dd 00                                              object_type: process
    00000000  !! unsupported, 14 bytes lost: at 5: process.protocol_version: 0x2 is not supported, only protocol_version 00 00 00 01
    00000002  00 00 00 02                                        protocol_version: 2
    00000006  00 00 00 00 00 00 00 00                          ?: unknown protocol version",
    );
}

#[test]
fn bytefrog_of_version_1_on_both_connections() {
    let control = "00 01  08 54 0002  09 00000007  2a 0006 64656d6f2f41";
    let data = "1e 00
        0a 0003 000005dc 0004 6d61696e
        0b 00000001 0010 64656d6f2f412e72756e3b313b282956
        14 0000ee4d 00000000 00000001 0003
        15 0000ee4e 00000001 00000001 ffff 0003
        32 0000ee4f 00000002 0001 6b 0004 1b5b324a
        14 00000001 00000003";
    let files = [("control.bin", bytes(control)), ("data.bin", bytes(data))];
    assert_shown(
        &explained(&["decode", "bytefrog", "--explain"], &files),
        "
    ==> control.bin <==
              hello
    00000000  00                                                 type: 0, hello
    00000001  01                                                 version: 1
              heartbeat
    00000002  08                                                 type: 8, heartbeat
    00000003  54                                                 mode: T, tracing
    00000004  00 02                                              buffers: 2
              data break
    00000006  09                                                 type: 9, data break
    00000006  !! gap: the agent was suspended: events before this number were dropped
    00000007  00 00 00 07                                        sequence: 7
              class transform failed
    0000000b  2a                                                 type: 42, class transform failed
    0000000c  00 06                                              length: 6 bytes
    0000000e  64 65 6d 6f 2f 41                                  class: \"demo/A\"

    ==> data.bin <==
              data hello
    00000000  1e                                                 type: 30, data hello
    00000001  00                                                 run: 0
              map thread name
    00000002  0a                                                 type: 10, map thread name
    00000003  00 03                                              thread: 3
    00000005  00 00 05 dc                                        time: 1.5 s after the start
    00000009  00 04                                              length: 4 bytes
    0000000b  6d 61 69 6e                                        name: \"main\"
              map method signature
    0000000f  0b                                                 type: 11, map method signature
    00000010  00 00 00 01                                        method: 1
    00000014  00 10                                              length: 16 bytes
    00000016  64 65 6d 6f 2f 41 2e 72 75 6e 3b 31 3b 28 29 56    signature: \"demo/A.run;1;()V\"
              method entry
    00000026  14                                                 type: 20, method entry
    00000027  00 00 ee 4d                                        time: 61.005 s after the start
    0000002b  00 00 00 00                                        sequence: 0
    0000002f  00 00 00 01                                        method: 1 \"demo/A.run;1;()V\"
    00000033  00 03                                              thread: 3 \"main\"
              method exit
    00000035  15                                                 type: 21, method exit
    00000036  00 00 ee 4e                                        time: 61.006 s after the start
    0000003a  00 00 00 01                                        sequence: 1
    0000003e  00 00 00 01                                        method: 1 \"demo/A.run;1;()V\"
    00000042  ff ff                                              line: unknown
    00000044  00 03                                              thread: 3 \"main\"
              marker
    00000046  32                                                 type: 50, marker
    00000047  00 00 ee 4f                                        time: 61.007 s after the start
    0000004b  00 00 00 02                                        sequence: 2
    0000004f  00 01                                              length: 1 byte
    00000051  6b                                                 key: \"k\"
    00000052  00 04                                              length: 4 bytes
    00000054  1b 5b 32 4a                                        value: \"\\u{1b}[2J\"
              method entry
    00000058  14                                                 type: 20, method entry
    00000058  !! truncated, 9 bytes lost: 9 bytes of an incomplete message, and the peer closed the connection
    00000059  00 00 00 01                                        time: 1 ms after the start
    0000005d  00 00 00 03                                        sequence: 3",
    );
}

#[test]
fn bytefrog_of_version_3_without_its_control_connection() {
    let data = "1e 00
        0d 00000004 00000001 0000000c 0000000d ffff 0007
        0e 00000005 00000000 00000001 00000004 0009
        15 00000006 00000001 00000001 01 0009
        1e";
    assert_shown(
        &explained(&["decode", "bytefrog", "--explain", "--protocol-version", "3"], &[("data.bin", bytes(data))]),
        "
              data hello
    00000000  1e                                                 type: 30, data hello
    00000000  !! unresolved, 2 events: events were written with raw ids: their names never arrived
    00000001  00                                                 run: 0
              map source location
    00000002  0d                                                 type: 13, map source location
    00000003  00 00 00 04                                        location: 4
    00000007  00 00 00 01                                        method: 1
    0000000b  00 00 00 0c                                        start line: 12
    0000000f  00 00 00 0d                                        end line: 13
    00000013  ff ff                                              start character: unknown
    00000015  00 07                                              end character: 7
              method visit
    00000017  0e                                                 type: 14, method visit
    00000018  00 00 00 05                                        time: 5 ms after the start
    0000001c  00 00 00 00                                        sequence: 0
    00000020  00 00 00 01                                        method: 1
    00000024  00 00 00 04                                        location: 4
    00000028  00 09                                              thread: 9
              method exit
    0000002a  15                                                 type: 21, method exit
    0000002b  00 00 00 06                                        time: 6 ms after the start
    0000002f  00 00 00 01                                        sequence: 1
    00000033  00 00 00 01                                        method: 1
    00000037  01                                                 threw: true
    00000038  00 09                                              thread: 9
    0000003a  1e                                               ?: no message that agents send here
    0000003a  !! unsupported, 1 byte lost: at 58: type: 0x1e is not supported, only 10 to 15, 20 to 23 or 50 on a data connection",
    );
}

#[test]
fn requests_hide_keys_in_annotations_and_show_faults_at_their_offsets() {
    let wrong = "PUT /3/x HTTP/1.1\r\nAuthorization: Basic abc\r\nContent-Length: 2\r\n\r\n{}";
    let key = "POST /agent/register HTTP/1.1\r\ncontent-length: 3\r\n\r\nkey";
    let shown = explained(&["decode", "endless", "--explain"], &[("wrong.http", wrong.into())]);
    assert_shown(
        &shown,
        "
              request 1
    00000000  50 55 54 20 2f 33 2f 78 20 48 54 54 50 2f 31 2e  request line: \"PUT /3/x HTTP/1.1\"
    00000010  31 0d 0a
    00000013  41 75 74 68 6f 72 69 7a 61 74 69 6f 6e 3a 20 42  header: authorization: hidden
    00000023  61 73 69 63 20 61 62 63 0d 0a
    0000002d  43 6f 6e 74 65 6e 74 2d 4c 65 6e 67 74 68 3a 20  header: content-length: \"2\"
    0000003d  32 0d 0a
    00000040  0d 0a                                            end of head
              body, 2 bytes
    | 00000000  7b 7d                                            ?: bundle: no room for its framing offsets
    | 00000000  !! unsupported, 2 bytes lost: the request was refused: the path must end with a SHA-512 in 128 hexadecimal digits",
    );
    let shown = explained(&["decode", "zico", "--explain"], &[("key.http", key.into())]);
    assert_shown(
        &shown,
        "
              request 1
    00000000  50 4f 53 54 20 2f 61 67 65 6e 74 2f 72 65 67 69  request line: \"POST /agent/register HTTP/1.1\"
    00000010  73 74 65 72 20 48 54 54 50 2f 31 2e 31 0d 0a
    0000001f  63 6f 6e 74 65 6e 74 2d 6c 65 6e 67 74 68 3a 20  header: content-length: \"3\"
    0000002f  33 0d 0a
    00000032  0d 0a                                            end of head
    00000034  6b 65 79                                         body: hidden
    | 00000000  !! malformed, 3 bytes lost: at 0: JSON: not a value, or nested too deeply",
    );
}
