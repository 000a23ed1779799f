//! Image ids, `product-branch-architecture-platform.date-time.personality`, and their parts.

use jiff::civil::DateTime;

/// The parts of an image id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Image<'a> {
    pub(super) product: &'a str,
    pub(super) branch: &'a str,
    pub(super) architecture: &'a str,
    pub(super) platform: &'a str,
    /// When it was built, read as UTC: `2021-11-23T09:31:12Z`.
    pub(super) built: String,
    /// The rest, e.g. `base`, or `base.base` where the build names it twice.
    pub(super) personality: &'a str,
}

/// Texts that agents without an image id send instead (rule 17).
const ABSENT: [&str; 2] = ["unknown", "[Invalid UTF-8]"];

/// The text of an image id; `None`: the agent has none.
pub(super) fn present(image: &str) -> Option<&str> {
    (!image.is_empty() && !ABSENT.contains(&image)).then_some(image)
}

/// The parts of an image id; `None`: the text has another form.
pub(super) fn parse(image: &str) -> Option<Image<'_>> {
    // A branch may contain dots, so the first part that is a date is used, not the first dot.
    let (start, stamp) = image.match_indices('.').find_map(|(dot, _)| {
        let stamp = image[dot + 1..].split('.').next()?;
        Some((dot, stamp)).filter(|_| built(stamp).is_some())
    })?;
    let personality = image[start + 1 + stamp.len()..].strip_prefix('.')?;
    let mut parts = image[..start].split('-');
    let [product, branch, architecture, platform] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let is_whole = ![product, branch, architecture, platform, personality].contains(&"") && parts.next().is_none();
    let built = built(stamp)?;
    is_whole.then_some(Image { product, branch, architecture, platform, built, personality })
}

/// The time of a stamp `YYMMDD-HHMMSS` or `YYYYMMDD-HHMMSS`.
fn built(stamp: &str) -> Option<String> {
    let (date, time) = stamp.split_once('-')?;
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(date) || !is_digits(time) || time.len() != 6 || ![6, 8].contains(&date.len()) {
        return None;
    }
    let (year, day) = date.split_at(date.len() - 4);
    let century = if year.len() == 2 { 2000 } else { 0 };
    let number = |text: &str| text.parse::<i8>().ok();
    let year = century + year.parse::<i16>().ok()?;
    let (month, day) = (number(&day[..2])?, number(&day[2..])?);
    let (hour, minute, second) = (number(&time[..2])?, number(&time[2..4])?, number(&time[4..])?);
    let built = DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
    Some(built.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_id_is_split_into_its_parts() {
        let image = parse("eos-eos4.0-amd64-amd64.211123-093112.base").unwrap();
        assert_eq!((image.product, image.branch), ("eos", "eos4.0"));
        assert_eq!((image.architecture, image.platform, image.personality), ("amd64", "amd64", "base"));
        assert_eq!(image.built, "2021-11-23T09:31:12Z");
        let image = parse("eosdvd-master-arm64-pinebookpro.20200229-235959.pt_BR.pt_BR").unwrap();
        assert_eq!((image.built.as_str(), image.personality), ("2020-02-29T23:59:59Z", "pt_BR.pt_BR"));
    }

    #[test]
    fn a_text_of_another_form_has_no_parts() {
        for text in [
            "not-an-image",
            "eos-eos4.0-amd64-amd64.211123-093112",
            "eos-eos4.0-amd64-amd64.211123-093112.",
            "eos-eos4.0-amd64.211123-093112.base",
            "eos-eos4.0-amd64-amd64-more.211123-093112.base",
            "eos-eos4.0-amd64-amd64.210229-093112.base",
            "eos-eos4.0-amd64-amd64.211123-243112.base",
            "eos--amd64-amd64.211123-093112.base",
            ".",
            "",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn placeholder_texts_are_no_image_id() {
        assert_eq!(present("unknown"), None);
        assert_eq!(present("[Invalid UTF-8]"), None);
        assert_eq!(present(""), None);
        assert_eq!(present("not-an-image"), Some("not-an-image"));
    }
}
