//! Writes the recordings of the project as inputs of the targets:
//!
//!     tests/fuzz/run seeds
//!
//! writes tests/fuzz/corpus/<target>/. The corpus is not part of the project: fuzzers add to it.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tributary::simulate::otlp::{OtlpDialect, OtlpProgram};
use tributary_fuzz::{MARK, Setting};

/// Longer inputs are slow and find nothing more.
const MOST_BYTES: usize = 16 * 1024;

fn main() -> io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let seeds = Seeds { data: here.join("../data"), corpus: here.join("corpus") };
    seeds.datadog()?;
    seeds.datadog_agent()?;
    seeds.otlp()?;
    seeds.bytefrog()?;
    seeds.rbkit()?;
    seeds.endless()?;
    seeds.zico()?;
    seeds.codecs()?;
    seeds.explain()
}

struct Seeds {
    data: PathBuf,
    corpus: PathBuf,
}

impl Seeds {
    fn datadog(&self) -> io::Result<()> {
        for case in self.folders("datadog")? {
            let wire = fs::read(case.join("wire.bin"))?;
            let is_padded = case.ends_with("js-reference-padded-lists");
            self.put("datadog", &[(3, u8::from(is_padded))], &wire)?;
            self.put("datadog", &[(0, 17), (1, 90), (3, u8::from(is_padded) | 2)], &wire)?;
        }
        Ok(())
    }

    fn datadog_agent(&self) -> io::Result<()> {
        const PATHS: [&str; 4] = ["/v0.4/traces", "/v0.5/traces", "/v0.7/traces", "/v1.0/traces"];
        for case in self.folders("datadog_agent/traces")? {
            let recorded: Value = serde_json::from_slice(&fs::read(case.join("1.json"))?)?;
            let path = PATHS.iter().position(|path| recorded["path"] == *path).unwrap_or(0) as u8;
            self.put("datadog_agent", &[(0, path)], &fs::read(case.join("1.bin"))?)?;
            self.put("datadog_agent", &[(0, 6)], recorded["resolved"].to_string().as_bytes())?;
        }
        for case in self.folders("datadog_agent/stats")? {
            self.put("datadog_agent", &[(0, 5)], &fs::read(case.join("1.bin"))?)?;
        }
        for name in ["py4-profile-1", "js-profile-1"] {
            let form = fs::read(self.data.join("datadog_agent/profiles").join(format!("{name}.bin")))?;
            let boundary = form.strip_prefix(b"--").and_then(|rest| rest.split(|byte| *byte == b'\r').next());
            // That of the target.
            let form = replaced(&form, boundary.unwrap_or_default(), b"b");
            self.put("datadog_agent", &[(0, 8)], &form)?;
        }
        let lines =
            b"a:1:2|c|@0.5|#k:v,service:shop|c:in-1\nb:3|ms\nu:x|s|T1700000000\n_e{1,1}:a|b|t:error|#x\n_sc|db|2|m:no";
        self.put("datadog_agent", &[(0, 9)], lines)?;
        let telemetry = br#"{"request_type":"message-batch","application":{"service_name":"a"},"payload":[{"request_type":"b","payload":{}}]}"#;
        self.put("datadog_agent", &[(0, 10)], telemetry)
    }

    /// Requests of a simulated program, and one of JSON.
    fn otlp(&self) -> io::Result<()> {
        for (path, (_, dialect)) in (0..).zip(OtlpDialect::ALL) {
            let request = OtlpProgram::new(1, 0, 1_795_176_900_000_000_000, dialect).request(20)?;
            let body = request.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or_default() + 4;
            self.put("otlp", &[(0, path)], &request[body..])?;
        }
        let json = br#"{"resourceSpans":[{"resource":{"attributes":[{"key":"a","value":{"stringValue":"b"}}]},"scopeSpans":[{"spans":[{"traceId":"5b8efff798038103d269b633813fc60c","kind":2,"startTimeUnixNano":"1","attributes":[{"key":"n","value":{"arrayValue":{"values":[{"doubleValue":1.5},{"kvlistValue":{"values":[]}}]}}}]}]}]}]}"#;
        self.put("otlp", &[(1, 1)], json)?;
        let json = br#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"h","histogram":{"aggregationTemporality":1,"dataPoints":[{"count":"3","sum":1.5,"bucketCounts":["1","2"],"explicitBounds":[0.5]}]}},{"name":"e","exponentialHistogram":{"dataPoints":[{"count":4,"scale":-1,"positive":{"offset":2,"bucketCounts":[1,300]},"negative":{"bucketCounts":["7"]}}]}},{"name":"s","summary":{"dataPoints":[{"count":1,"quantileValues":[{"quantile":1,"value":2}]}]}}]}]}]}"#;
        self.put("otlp", &[(0, 2), (1, 1)], json)?;
        let json = br#"{"resourceProfiles":[{"resource":{"attributes":[{"keyStrindex":1,"value":{"stringValueStrindex":2}}]},"scopeProfiles":[{"profiles":[{"sampleType":{"typeStrindex":1},"samples":[{"stackIndex":1,"linkIndex":1,"attributeIndices":[1],"values":["1"],"timestampsUnixNano":["2"]}],"attributeIndices":[1]}]}]}],"dictionary":{"stringTable":["","a","b"],"mappingTable":[{},{"filenameStrindex":2}],"functionTable":[{},{"nameStrindex":1}],"locationTable":[{},{"lines":[{"functionIndex":1,"line":3}]},{"mappingIndex":1,"address":16}],"linkTable":[{},{"traceId":"5b8efff798038103d269b633813fc60c","spanId":"eee19b7ec3c1b174"}],"attributeTable":[{},{"keyStrindex":1,"value":{"intValue":1}}],"stackTable":[{},{"locationIndices":[2,1]}]}}"#;
        self.put("otlp", &[(0, 3), (1, 1)], json)
    }

    /// The control connection of each run, then its data: once with the run of its hello, once unchanged.
    fn bytefrog(&self) -> io::Result<()> {
        for case in self.folders("bytefrog")? {
            let streams = ["control", "data-0", "data-1", "data-2"];
            let streams: Vec<_> =
                streams.iter().filter_map(|n| fs::read(case.join(format!("{n}.agent.bin"))).ok()).collect();
            let version = match streams.first().map(Vec::as_slice) {
                Some([0, version @ 1..=4, ..]) => version - 1,
                _ => 3,
            };
            let bodies = |from: usize| {
                let part =
                    |(at, stream): (usize, &Vec<u8>)| (at as u8, stream.get(from..).unwrap_or_default().to_vec());
                streams.iter().enumerate().map(part).collect::<Vec<_>>()
            };
            for mode in 0..6 {
                self.put("bytefrog", &[(1, version), (2, mode)], &joined(&bodies(2)))?;
            }
            self.put("bytefrog", &[(0, 1), (1, version)], &joined(&bodies(0)))?;
            self.put("bytefrog", &[(0, 3), (1, version)], &joined(&bodies(0)))?;
        }
        Ok(())
    }

    fn rbkit(&self) -> io::Result<()> {
        const PUBLISHED: u8 = 0;
        const REPLIED: u8 = 1;
        const BODY: u8 = 2;
        const BOTH: u8 = 3;
        for session in self.folders("rbkit/sessions")? {
            let mut parts = Vec::new();
            for file in files(&session)? {
                let name = file.to_string_lossy().into_owned();
                let body = fs::read(&file)?;
                if name.ends_with(".msgpack") && body.len() < MOST_BYTES {
                    self.put("rbkit", &[(0, BODY)], &joined(&[(4, body.clone())]))?;
                    let is_published = name.contains("-pub-");
                    let mode = if is_published { PUBLISHED } else { REPLIED };
                    self.put("rbkit", &[(0, mode), (1, 33)], &joined(&[(4, body.clone())]))?;
                    parts.push((if is_published { 4 } else { 12 }, body));
                }
            }
            let mut size = 0;
            parts.retain(|(_, body)| {
                size += body.len() + 4;
                size < MOST_BYTES - 64
            });
            self.put("rbkit", &[(0, BOTH), (4, 2)], &joined(&parts))?;
        }
        for (folder, mode) in [("rbkit/messages", PUBLISHED), ("rbkit/replies", REPLIED)] {
            for file in files(&self.data.join(folder))? {
                if file.extension().is_some_and(|extension| extension != "json") {
                    self.put("rbkit", &[(0, mode)], &joined(&[(4, fs::read(&file)?)]))?;
                }
            }
        }
        for folder in self.folders("rbkit/zmtp")? {
            for file in files(&folder)? {
                if file.extension().is_some_and(|extension| extension == "bin") {
                    let mode = if file.to_string_lossy().contains("rep") { REPLIED } else { PUBLISHED };
                    self.put("rbkit", &[(0, mode), (4, 1)], &joined(&[(0, fs::read(&file)?)]))?;
                }
            }
        }
        Ok(())
    }

    fn endless(&self) -> io::Result<()> {
        for case in self.folders("endless")? {
            let Ok(body) = fs::read(case.join("body.bin")) else { continue };
            let expected: Option<Value> =
                fs::read(case.join("expected.json")).ok().and_then(|text| serde_json::from_slice(&text).ok());
            let version = expected.and_then(|expected| expected["protocol"].as_u64()).unwrap_or(3);
            let order = 3 - version.min(3) as u8;
            self.put("endless", &[], &joined(&[(order, body.clone())]))?;
            self.put("endless", &[(2, 1)], &joined(&[(order | 4, body.clone()), (order, body)]))?;
        }
        Ok(())
    }

    fn zico(&self) -> io::Result<()> {
        for case in self.folders("zico")? {
            let mut parts: Vec<_> = requests(&case)?.into_iter().map(|request| (0, request)).collect();
            self.put("zico", &[], &joined(&parts))?;
            self.put("zico", &[(0, 1)], &joined(&parts))?;
            // A whole conversation may be too long; its first requests are not.
            let mut size = 0;
            parts.retain(|(_, bytes)| {
                size += bytes.len() + 4;
                size < MOST_BYTES - 64
            });
            self.put("zico", &[(3, 1)], &joined(&parts))?;
        }
        for case in self.folders("zico_packets")? {
            let is_input = |file: &PathBuf| file.to_string_lossy().contains("wire-in");
            let connections = files(&case)?.into_iter().filter(is_input).map(fs::read);
            let parts = connections.map(|bytes| Ok((0, bytes?))).collect::<io::Result<Vec<_>>>()?;
            self.put("zico", &[], &joined(&parts))?;
            self.put("zico", &[(2, 1), (0, 1)], &joined(&parts))?;
            for (_, bytes) in &parts {
                self.put_bare("explain", &[&[15, 7], &bytes[..]].concat())?;
            }
        }
        Ok(())
    }

    /// The input of each codec in the recordings, after the bytes that its target expects first.
    fn codecs(&self) -> io::Result<()> {
        for case in self.folders("zico")? {
            let is_form = case.file_name().is_some_and(|name| name.to_string_lossy().starts_with("form"));
            for file in files(&case.join("bodies"))? {
                let body = fs::read(&file)?;
                self.put_bare("values", &[&[0], &body[..]].concat())?;
                if is_form {
                    // As base64, and as EDN.
                    self.put_bare("codecs", &[&[0, 0, 0], &body[..]].concat())?;
                    self.put_bare("codecs", &[&[0, 2, 0], &body[..]].concat())?;
                }
            }
        }
        for folder in ["rbkit/messages", "rbkit/replies"] {
            for file in files(&self.data.join(folder))? {
                if file.extension().is_some_and(|extension| extension != "json") {
                    self.put_bare("values", &[&[1, 0], &fs::read(&file)?[..]].concat())?;
                }
            }
        }
        for folder in self.folders("rbkit/zmtp")? {
            for file in files(&folder)? {
                self.put_bare("codecs", &[&[1, 0, 0], &fs::read(&file)?[..]].concat())?;
                self.put_bare("codecs", &[&[1, 0, 1], &fs::read(&file)?[..]].concat())?;
            }
        }
        for file in files(&self.data.join("endless/http"))? {
            let request = fs::read(&file)?;
            self.put_bare("codecs", &[&[1, 1, 99], &request[..]].concat())?;
            if let Some(head) = request.windows(4).position(|window| window == b"\r\n\r\n") {
                self.put_bare("unpack", &[&[0, 0, 0, 0], &request[head + 4..]].concat())?;
            }
        }
        for case in self.folders("endless")? {
            if let Ok(body) = fs::read(case.join("body.bin")) {
                // Packed in every format, complete and damaged.
                for how in 0x10..0x17 {
                    self.put_bare("unpack", &[&[how, 0, 0, 0], &body[..]].concat())?;
                    self.put_bare("unpack", &[&[how, 40, 8, 99], &body[..]].concat())?;
                }
                // Not the type of a bundle, but also written by agents.
                self.put_bare("gvariant", &[&[0], &body[..]].concat())?;
                self.put_bare("gvariant", &[&[1], &body[..]].concat())?;
                self.put_bare("codecs", &[&[1, 3, 40], &body[..]].concat())?;
            }
        }
        Ok(())
    }

    /// Received bytes, after the number of the protocol that explains them and the cut.
    fn explain(&self) -> io::Result<()> {
        for case in self.folders("datadog")? {
            let is_padded = u8::from(case.ends_with("js-reference-padded-lists"));
            self.put_bare("explain", &[&[is_padded, 5], &fs::read(case.join("wire.bin"))?[..]].concat())?;
        }
        for case in self.folders("bytefrog")? {
            for name in ["control", "data-0"] {
                let Ok(stream) = fs::read(case.join(format!("{name}.agent.bin"))) else { continue };
                let version =
                    case.file_name().and_then(|name| name.to_str()?.split('v').nth(1)?.get(..1)?.parse::<u8>().ok());
                self.put_bare("explain", &[&[1 + version.unwrap_or(4), 6], &stream[..]].concat())?;
            }
        }
        for folder in ["rbkit/messages", "rbkit/replies"] {
            for file in files(&self.data.join(folder))? {
                if file.extension().is_some_and(|extension| extension != "json") {
                    self.put_bare("explain", &[&[6, 7], &fs::read(&file)?[..]].concat())?;
                }
            }
        }
        for folder in self.folders("rbkit/zmtp")? {
            for file in files(&folder)? {
                self.put_bare("explain", &[&[6, 5], &fs::read(&file)?[..]].concat())?;
            }
        }
        for case in self.folders("endless")? {
            if let Ok(request) = fs::read(case.join("request.http")) {
                self.put_bare("explain", &[&[10, 0], &request[..]].concat())?;
                self.put_bare("explain", &[&[14, 8], &request[..]].concat())?;
            }
        }
        for case in self.folders("zico")? {
            for (number, request) in requests(&case)?.into_iter().enumerate() {
                self.put_bare("explain", &[&[11, number as u8], &request[..]].concat())?;
            }
        }
        Ok(())
    }

    /// Writes an input with these bytes of the setting.
    fn put(&self, target: &str, setting: &[(usize, u8)], rest: &[u8]) -> io::Result<()> {
        let mut input = vec![0; Setting::BYTES];
        setting.iter().for_each(|(at, byte)| input[*at] = *byte);
        input.extend_from_slice(rest);
        self.put_bare(target, &input)
    }

    fn put_bare(&self, target: &str, input: &[u8]) -> io::Result<()> {
        if input.len() > MOST_BYTES {
            return Ok(());
        }
        let folder = self.corpus.join(target);
        fs::create_dir_all(&folder)?;
        let mut hasher = DefaultHasher::new();
        input.hash(&mut hasher);
        fs::write(folder.join(format!("seed-{:016x}", hasher.finish())), input)
    }

    fn folders(&self, name: &str) -> io::Result<Vec<PathBuf>> {
        let mut entries = entries(&self.data.join(name))?;
        entries.retain(|entry| entry.is_dir());
        Ok(entries)
    }
}

/// The requests of a zico conversation, as bytes. Without a length, the body is the rest.
fn requests(case: &Path) -> io::Result<Vec<Vec<u8>>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut requests = Vec::new();
    for line in fs::read_to_string(case.join("requests.ndjson"))?.lines() {
        let request: Value = serde_json::from_str(line)?;
        let mut bytes = format!("POST {} HTTP/1.1\r\n", text(&request["path"]));
        for header in request["headers"].as_array().into_iter().flatten() {
            if !text(&header[0]).eq_ignore_ascii_case("content-length") {
                bytes.push_str(&format!("{}: {}\r\n", text(&header[0]), text(&header[1])));
            }
        }
        bytes.push_str("\r\n");
        let body = fs::read(case.join(text(&request["body"])))?;
        requests.push([bytes.into_bytes(), body].concat());
    }
    Ok(requests)
}

/// Parts as [`tributary_fuzz::parts`] reads them.
fn joined(parts: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let parts: Vec<_> = parts.iter().map(|(order, bytes)| [&[*order][..], bytes].concat()).collect();
    parts.join(&MARK[..])
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = entries(folder)?;
    entries.retain(|entry| entry.is_file());
    Ok(entries)
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}

/// The bytes with each `from` replaced.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut rest = bytes;
    let mut all = Vec::new();
    while let Some(at) = rest.windows(from.len().max(1)).position(|window| window == from) {
        all.extend_from_slice(&rest[..at]);
        all.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    all.extend_from_slice(rest);
    all
}
