//! The options of uploads: `[sinks.NAME.upload]`.

use std::fmt;
use std::path::Path as FilePath;
use std::time::Duration;

use hyper::Uri;
use object_store::path::Path;

use tributary_options::{Bounds, LONGEST, Secret, Section, options};
use tributary_sink_forward::client::{ClientTls, MAX_RESPONSE_BYTES};
use tributary_sink_forward::{Proxy, RetryOptions};

/// S3 refuses smaller parts, except the last one.
const SMALLEST_PART: usize = 5 << 20;
/// S3 refuses larger parts.
const LARGEST_PART: usize = 1 << 30;
/// The settings with the address of a store.
const ENDPOINTS: [&str; 3] = ["aws_endpoint", "google_base_url", "azure_storage_endpoint"];
/// Buffers of the client and of TLS.
const CLIENT_BYTES: u64 = 1 << 20;

options! {
    /// Where and how finished files are uploaded. `url` is required, everything else has a default.
    #[derive(Clone, Debug, PartialEq)]
    pub struct UploadOptions checked by check {
        /// The bucket, and the beginning of the name of each object: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX. An
        /// object has the path of the file below the directories of `path` before the first item or field. Each daemon needs a prefix
        /// of its own: "s3://telemetry/${HOSTNAME}".
        pub url: Url = flat(read_url),
        /// Whether a file is removed here after the store has confirmed it. Otherwise keep_files, keep_bytes and keep_time say how long
        /// it is kept.
        pub delete_after: bool = bool(true),
        /// Larger files are sent in parts of this size; one part is in memory.
        pub part_bytes: usize = size(8 << 20, SMALLEST_PART..=LARGEST_PART),
        /// How long connecting may take.
        pub connect_timeout: Duration = duration(Duration::from_secs(5), Duration::from_millis(1)..=LONGEST),
        /// How long one request, which sends one part at most, may take.
        pub request_timeout: Duration = duration(Duration::from_secs(120), Duration::from_millis(1)..=LONGEST),
        /// The pauses between attempts.
        pub retry: RetryOptions =
            flat(|section| RetryOptions::read(section, Duration::from_secs(1), Duration::from_secs(60))),
        /// Whether the store may be addressed without TLS.
        pub allow_http: bool = bool(false),
        /// The authorities of server certificates.
        pub tls: ClientTls = flat(read_tls),
        /// The HTTP proxy of requests.
        pub proxy: Proxy = flat(Proxy::read),
        /// The options that the crate object_store reads, by its names for them.
        pub settings: Vec<(&'static str, Secret)> = flat(|section| read_settings(section, url.provider)),
    }
}

/// A prefix of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whose bucket.
    pub provider: Provider,
    /// The name of the bucket, or of the container.
    pub bucket: String,
    /// The beginning of the name of each object, without slashes around it. It may be empty.
    pub prefix: Path,
}

/// A protocol of object stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Amazon S3, and stores that speak its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl Provider {
    const ALL: [Provider; 3] = [Provider::S3, Provider::Gcs, Provider::Azure];

    fn scheme(self) -> &'static str {
        match self {
            Provider::S3 => "s3",
            Provider::Gcs => "gs",
            Provider::Azure => "az",
        }
    }

    /// How the names of its settings begin.
    fn settings_prefix(self) -> &'static str {
        match self {
            Provider::S3 => "aws_",
            Provider::Gcs => "google_",
            Provider::Azure => "azure_",
        }
    }
}

impl Url {
    /// Reads `SCHEME://BUCKET/PREFIX`.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(text: &str) -> Result<Url, String> {
        let (scheme, rest) = text.split_once("://").ok_or("has no scheme")?;
        let provider = Provider::ALL.into_iter().find(|provider| provider.scheme() == scheme);
        let provider = provider.ok_or_else(|| format!("has the unknown scheme {scheme}"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(is_plain) {
            return Err("has no valid bucket".to_owned());
        }
        let prefix = Path::parse(prefix).map_err(|error| format!("has no valid prefix: {error}"))?;
        Ok(Url { provider, bucket: bucket.to_owned(), prefix })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.provider.scheme(), self.bucket, self.prefix)
    }
}

impl UploadOptions {
    /// The default options of uploads to `url`.
    pub fn to(url: Url) -> UploadOptions {
        UploadOptions { url, ..UploadOptions::default() }
    }

    fn check(&self, section: &mut Section<'_>) {
        self.check_settings(section);
    }

    fn check_settings(&self, section: &mut Section<'_>) {
        for (key, other) in [
            ("aws_access_key_id", "aws_secret_access_key"),
            ("aws_secret_access_key", "aws_access_key_id"),
            ("azure_storage_account_key", "azure_storage_account_name"),
            ("azure_storage_sas_key", "azure_storage_account_name"),
        ] {
            if self.setting(key).is_some() && self.setting(other).is_none() {
                section.error(key, format!("`{key}` needs `{other}`"), None);
            }
        }
        if let Some(key) = self.plain_address().filter(|_| !self.allow_http) {
            section.error(key, "is an address of http", Some("set allow_http = true".into()));
        }
    }

    /// The setting that is an address of http, if there is one.
    fn plain_address(&self) -> Option<&'static str> {
        let is_plain = |value: &Secret| matches!(value, Secret::Text(text) if text.starts_with("http://"));
        let is_endpoint = |key: &str| ENDPOINTS.contains(&key);
        self.settings.iter().find(|(key, value)| is_endpoint(key) && is_plain(value)).map(|(key, _)| *key)
    }

    /// Through which proxy requests to the store go, without its credentials, and what says so. `None`: through none.
    pub fn proxy(&self) -> Option<String> {
        let address = |key: &str| match self.setting(key)? {
            Secret::Text(text) => text.parse().ok(),
            Secret::File(_) | Secret::Env(_) => None,
        };
        let store = ENDPOINTS.iter().find_map(|key| address(key));
        self.proxy.describe(&store.unwrap_or_else(|| Uri::from_static("https://store")))
    }

    /// Whether the store is addressed by http, so that no authorities of certificates are needed.
    pub(super) fn is_plain(&self) -> bool {
        self.plain_address().is_some()
    }

    fn setting(&self, key: &str) -> Option<&Secret> {
        self.settings.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// The files with secrets, with the names of the settings that name them.
    pub fn secret_files(&self) -> impl Iterator<Item = (&'static str, &FilePath)> {
        self.settings.iter().filter_map(|(key, value)| match value {
            Secret::File(path) => Some((*key, &**path)),
            Secret::Text(path) if names_a_secret_file(key) => Some((*key, FilePath::new(path))),
            Secret::Text(_) | Secret::Env(_) => None,
        })
    }

    /// Declares the memory that uploads take at most.
    pub(crate) fn declare(&self, of: &str, bounds: &mut Bounds) {
        let part = self.part_bytes as u64;
        bounds.add(of, "a part of a file being uploaded", part + MAX_RESPONSE_BYTES as u64 + CLIENT_BYTES);
    }
}

fn read_tls(section: &mut Section<'_>) -> ClientTls {
    section.about("PEM file with the authorities of server certificates. Not set: those of the system.");
    ClientTls { ca: section.optional_path("ca"), ..ClientTls::default() }
}

/// An invalid url is reported; the result is not used then.
fn read_url(section: &mut Section<'_>) -> Url {
    const HELP: &str = "write url = \"s3://BUCKET/PREFIX\", \"gs://BUCKET/PREFIX\" or \"az://CONTAINER/PREFIX\"";
    let unused = Url { provider: Provider::S3, bucket: String::new(), prefix: Path::default() };
    let Some(text) = section.required_text("url", HELP) else { return unused };
    Url::parse(&text).unwrap_or_else(|why| {
        section.error("url", why, Some(HELP.to_owned()));
        unused
    })
}

/// How a setting is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SettingKind {
    /// A text, from a file or the environment where it is so written.
    Text,
    /// The same, which is not shown.
    Secret,
    /// `true` or `false`.
    Flag,
}

/// Reads the settings of this provider. Those of others do not belong here.
fn read_settings(section: &mut Section<'_>, provider: Provider) -> Vec<(&'static str, Secret)> {
    let is_of = |key: &str, provider: Provider| key.starts_with(provider.settings_prefix());
    let help = |key: &'static str| {
        let of = Provider::ALL.into_iter().find(|provider| is_of(key, *provider));
        (key.to_owned(), format!("it is for a url that begins with {}://", of.map_or("", Provider::scheme)))
    };
    let others = SETTINGS.iter().filter(|(key, _)| !is_of(key, provider));
    section.explain_keys(others.map(|(key, _)| help(key)).collect::<Vec<_>>());
    let own = SETTINGS.iter().filter(|(key, _)| is_of(key, provider));
    let read = own.filter_map(|(key, value)| {
        section.about("Option of the store, by the name that the crate object_store has for it.");
        let value = match value {
            SettingKind::Text => section.optional_secret(key, false),
            SettingKind::Secret => section.optional_secret(key, true),
            SettingKind::Flag => section.bool(key, false).then(|| Secret::Text("true".to_owned())),
        };
        Some((*key, value?))
    });
    read.collect()
}

/// The settings of object_store that are read, under its names.
const SETTINGS: [(&str, SettingKind); 32] = [
    ("aws_access_key_id", SettingKind::Secret),
    ("aws_secret_access_key", SettingKind::Secret),
    ("aws_session_token", SettingKind::Secret),
    ("aws_region", SettingKind::Text),
    ("aws_endpoint", SettingKind::Text),
    ("aws_virtual_hosted_style_request", SettingKind::Flag),
    ("aws_role_arn", SettingKind::Text),
    ("aws_role_session_name", SettingKind::Text),
    ("aws_web_identity_token_file", SettingKind::Text),
    ("aws_endpoint_url_sts", SettingKind::Text),
    ("aws_container_credentials_relative_uri", SettingKind::Text),
    ("aws_container_credentials_full_uri", SettingKind::Text),
    ("aws_container_authorization_token_file", SettingKind::Text),
    ("aws_metadata_endpoint", SettingKind::Text),
    ("aws_checksum_algorithm", SettingKind::Text),
    ("aws_server_side_encryption", SettingKind::Text),
    ("aws_sse_kms_key_id", SettingKind::Text),
    ("google_service_account", SettingKind::Text),
    ("google_service_account_key", SettingKind::Secret),
    ("google_application_credentials", SettingKind::Text),
    ("google_base_url", SettingKind::Text),
    ("google_skip_signature", SettingKind::Flag),
    ("azure_storage_account_name", SettingKind::Text),
    ("azure_storage_account_key", SettingKind::Secret),
    ("azure_storage_sas_key", SettingKind::Secret),
    ("azure_storage_client_id", SettingKind::Text),
    ("azure_storage_client_secret", SettingKind::Secret),
    ("azure_storage_tenant_id", SettingKind::Text),
    ("azure_storage_authority_host", SettingKind::Text),
    ("azure_storage_endpoint", SettingKind::Text),
    ("azure_federated_token_file", SettingKind::Text),
    ("azure_msi_endpoint", SettingKind::Text),
];

/// Whether the value of a setting is not shown.
pub(super) fn is_secret(key: &str) -> bool {
    SETTINGS.contains(&(key, SettingKind::Secret))
}

/// Whether the value of a setting is a file with a secret, which object_store reads.
fn names_a_secret_file(key: &str) -> bool {
    key.ends_with("_file") || key == "google_service_account" || key == "google_application_credentials"
}

#[cfg(test)]
mod tests {
    use object_store::aws::AmazonS3ConfigKey;
    use object_store::azure::AzureConfigKey;
    use object_store::gcp::GoogleConfigKey;

    use super::*;

    #[test]
    fn object_store_knows_every_setting_by_this_name() {
        for (key, _) in SETTINGS {
            let is_known = match key.split_once('_').unwrap().0 {
                "aws" => key.parse::<AmazonS3ConfigKey>().is_ok(),
                "google" => key.parse::<GoogleConfigKey>().is_ok(),
                _ => key.parse::<AzureConfigKey>().is_ok(),
            };
            assert!(is_known, "{key}");
        }
    }

    #[test]
    fn a_url_has_a_scheme_a_bucket_and_a_prefix() {
        for url in ["s3://b/a/prefix", "gs://b.c_d/", "az://container/x=y/z"] {
            assert_eq!(Url::parse(url).unwrap().to_string(), url);
        }
        assert_eq!(Url::parse("s3://bucket").unwrap().prefix, Path::default());
        for (url, why) in [
            ("bucket/prefix", "scheme"),
            ("ftp://bucket", "unknown scheme ftp"),
            ("s3:///prefix", "bucket"),
            ("s3://key:secret@bucket/prefix", "bucket"),
            ("s3://bucket/a//b", "prefix"),
            ("s3://bucket/../b", "prefix"),
        ] {
            let error = Url::parse(url).unwrap_err();
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
