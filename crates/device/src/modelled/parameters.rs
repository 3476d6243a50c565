//! The parameters of a model, as text: `key = value` lines of TOML (numbers and strings); `#`
//! begins a comment.
//!
//! The unit of a value is the suffix of its key. Every key is required, so every value of a model
//! is written in its text; there are no defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Model;
use super::flash::{self, Flash};
use super::ftl::FtlShape;
use super::hdd::{self, Hdd};
use super::latency::{self, Latency};

/// The models that come with the library: name and text.
pub const MODELS: [(&str, &str); 6] = [
    ("desktop-7200-2009", include_str!("../../models/desktop-7200-2009.toml")),
    ("notebook-5400-2009", include_str!("../../models/notebook-5400-2009.toml")),
    ("sata-ssd-2018", include_str!("../../models/sata-ssd-2018.toml")),
    ("sata-ssd-2018-ftl", include_str!("../../models/sata-ssd-2018-ftl.toml")),
    ("network-disk", include_str!("../../models/network-disk.toml")),
    ("memory", include_str!("../../models/memory.toml")),
];

/// What is wrong with the text of a model, or with its use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadModel {
    /// No model has that name.
    #[error("there is no device model {0:?}; known: {known}", known = MODELS.map(|(name, _)| name).join(", "))]
    Unknown(String),
    /// A line is neither empty, nor a comment, nor `key = value`.
    #[error("line {line} of the model is not `key = value`: {text:?}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// Its text.
        text: String,
    },
    /// A key is missing, repeated or unknown, or its value is not allowed.
    #[error("the model's `{key}`: {what}")]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The model cannot stand for a device of that size.
    #[error("the model cannot stand for a device of {bytes} bytes: {what}")]
    Size {
        /// The size.
        bytes: u64,
        /// Why not.
        what: &'static str,
    },
}

/// The parameters of one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelParameters(Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Hdd(hdd::Parameters),
    Ssd(flash::Parameters),
    Ftl { flash: flash::Parameters, block_pages: u32, spare_thousandths: u64 },
    Latency(latency::Parameters),
}

impl ModelParameters {
    /// The parameters of a model that comes with the library.
    ///
    /// # Errors
    /// [`BadModel::Unknown`]; its message lists the known names.
    pub fn named(name: &str) -> Result<Self, BadModel> {
        Self::named_with(name, &[])
    }

    /// As [`named`](Self::named), with other values for some keys: a model calibrated by its user.
    ///
    /// # Errors
    /// As [`named`](Self::named); [`BadModel::Key`] for a key that the model does not have, or a
    /// value that is not allowed.
    pub fn named_with(name: &str, changes: &[(&str, String)]) -> Result<Self, BadModel> {
        let model = MODELS.iter().find(|(known, _)| *known == name);
        let (_, text) = model.ok_or_else(|| BadModel::Unknown(name.to_owned()))?;
        let mut keys = Keys::parse(text)?;
        for (key, value) in changes {
            keys.take(key)?;
            keys.0.insert((*key).to_owned(), value.clone());
        }
        Self::of_keys(keys)
    }

    /// Reads the text of a model.
    ///
    /// # Errors
    /// [`BadModel::Line`], [`BadModel::Key`].
    pub fn parse(text: &str) -> Result<Self, BadModel> {
        Self::of_keys(Keys::parse(text)?)
    }

    fn of_keys(mut keys: Keys) -> Result<Self, BadModel> {
        let kind = match keys.text("model")?.as_str() {
            "hdd" => Kind::Hdd(keys.hdd()?),
            "ssd" => Kind::Ssd(keys.flash()?),
            "ftl" => Kind::Ftl {
                flash: keys.flash()?,
                block_pages: keys.number("block_pages", 1..=1 << 20)?,
                spare_thousandths: keys.number("spare_thousandths", 0..=10_000)?,
            },
            "latency" => Kind::Latency(keys.latency()?),
            _ => return Err(bad("model", "one of hdd, ssd, ftl, latency")),
        };
        keys.all_were_used()?;
        Ok(Self(kind))
    }

    /// A model for a device of this many bytes. The model starts idle. A model `ftl` has at most
    /// 2^29 pages, including the spare ones, and at most 2^24 blocks.
    ///
    /// # Errors
    /// [`BadModel::Size`].
    pub fn model(&self, bytes: u64) -> Result<Box<dyn Model>, BadModel> {
        Ok(match self.0 {
            Kind::Hdd(hdd) if hdd.bytes < bytes => {
                return Err(BadModel::Size { bytes, what: "the disk is smaller" });
            }
            Kind::Hdd(hdd) => Box::new(Hdd::new(hdd)),
            Kind::Ssd(flash) => Box::new(Flash::new(flash, None)),
            Kind::Ftl { flash, block_pages, spare_thousandths } => {
                let pages = flash::pages_of(bytes, flash.page);
                let shape = FtlShape::with_spare(pages, block_pages, spare_thousandths);
                let shape = shape.ok_or(BadModel::Size {
                    bytes,
                    what: "its flash has more than 2^29 pages or 2^24 blocks",
                })?;
                Box::new(Flash::new(flash, Some(shape)))
            }
            Kind::Latency(latency) => Box::new(Latency::new(latency)),
        })
    }

    /// Whether the model has seek times.
    #[must_use]
    pub const fn is_rotational(&self) -> bool {
        matches!(self.0, Kind::Hdd(_))
    }
}

fn bad(key: &str, what: &'static str) -> BadModel {
    BadModel::Key { key: key.to_owned(), what }
}

/// Keys that were not read yet, with their values.
struct Keys(BTreeMap<String, String>);

impl Keys {
    fn parse(text: &str) -> Result<Self, BadModel> {
        let mut keys = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let line = || BadModel::Line { line: index + 1, text: line.to_owned() };
            let (key, value) = content.split_once('=').ok_or_else(line)?;
            let (key, value) = (key.trim(), value.trim());
            if keys.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(bad(key, "is given twice"));
            }
        }
        Ok(Self(keys))
    }

    fn take(&mut self, key: &str) -> Result<String, BadModel> {
        self.0.remove(key).ok_or_else(|| bad(key, "is missing"))
    }

    fn text(&mut self, key: &str) -> Result<String, BadModel> {
        let value = self.take(key)?;
        let inner = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        inner.map(str::to_owned).ok_or_else(|| bad(key, "takes text in quotes"))
    }

    fn number<N>(&mut self, key: &str, range: std::ops::RangeInclusive<N>) -> Result<N, BadModel>
    where
        N: std::str::FromStr + PartialOrd,
    {
        let value = self.take(key)?.replace('_', "");
        let number = value.parse().map_err(|_| bad(key, "takes a whole number"))?;
        if range.contains(&number) { Ok(number) } else { Err(bad(key, "is out of range")) }
    }

    /// Microseconds, up to ten seconds.
    fn micros(&mut self, key: &str) -> Result<Duration, BadModel> {
        let value = self.take(key)?.replace('_', "");
        let micros: f64 = value.parse().map_err(|_| bad(key, "takes a number"))?;
        if !(0.0..=1e7).contains(&micros) {
            return Err(bad(key, "is out of range"));
        }
        Ok(Duration::from_secs_f64(micros / 1e6))
    }

    /// Megabytes (10^6) per second, with up to six decimals. Returns bytes per second.
    fn rate(&mut self, key: &str) -> Result<u64, BadModel> {
        let value = self.take(key)?.replace('_', "");
        let bytes = bytes_of_megabytes(&value).ok_or_else(|| bad(key, "takes a number of MB a second"))?;
        if (1_000_000..=1_000_000_000_000).contains(&bytes) {
            Ok(bytes)
        } else {
            Err(bad(key, "is out of range"))
        }
    }

    fn hdd(&mut self) -> Result<hdd::Parameters, BadModel> {
        let turns: u64 = self.number("turns_per_minute", 100..=100_000)?;
        let parameters = hdd::Parameters {
            bytes: self.number("bytes", 1 << 20..=1 << 60)?,
            zones: self.number("zones", 1..=1000)?,
            rates: (self.rate("outer_mb_s")?, self.rate("inner_mb_s")?),
            turn: Duration::from_nanos(60_000_000_000 / turns),
            seeks: [
                self.micros("shortest_seek_us")?,
                self.micros("average_seek_us")?,
                self.micros("full_seek_us")?,
            ],
            command: self.micros("command_us")?,
            margin: self.micros("margin_us")?,
            line: self.rate("line_mb_s")?,
            buffer: (self.number("buffer_part_bytes", 0..=1 << 40)?, self.number("buffer_parts", 0..=4096)?),
            queue: self.number("queue", 1..=4096)?,
            host_queue: self.number("host_queue", 1..=1 << 20)?,
            patience: self.micros("patience_us")?,
        };
        if parameters.rates.0 < parameters.rates.1 {
            return Err(bad("inner_mb_s", "is more than outer_mb_s"));
        }
        if !parameters.seeks.is_sorted() {
            return Err(bad("average_seek_us", "must lie between shortest_seek_us and full_seek_us"));
        }
        Ok(parameters)
    }

    fn flash(&mut self) -> Result<flash::Parameters, BadModel> {
        Ok(flash::Parameters {
            units: self.number("units", 1..=65_536)?,
            page: self.number("page_bytes", 512..=1 << 30)?,
            times: [self.micros("read_us")?, self.micros("program_us")?, self.micros("erase_us")?],
            link: self.rate("link_mb_s")?,
            command: self.micros("link_command_us")?,
            controller: self.micros("controller_us")?,
            depth: self.number("queue", 1..=65_536)?,
            buffer: self.number("buffer_pages", 1..=1 << 30)?,
        })
    }

    fn latency(&mut self) -> Result<latency::Parameters, BadModel> {
        Ok(latency::Parameters {
            time: self.micros("request_us")?,
            depth: self.number("queue", 1..=65_536)?,
            line: self.rate("line_mb_s")?,
        })
    }

    fn all_were_used(&self) -> Result<(), BadModel> {
        match self.0.keys().next() {
            Some(key) => Err(bad(key, "means nothing in this model")),
            None => Ok(()),
        }
    }
}

/// Converts a decimal number of megabytes, such as `32.5`, to bytes. `None` if it is no such
/// number, has more than six decimals, or is too large.
fn bytes_of_megabytes(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(part) || part.len() > 6 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(1_000_000)?.checked_add(format!("{part:0<6}").parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_of_the_library_is_read() {
        for (name, text) in MODELS {
            let parameters = ModelParameters::named(name).unwrap();
            assert!(parameters.model(1 << 30).unwrap().depth() > 0);
            assert_eq!(parameters.is_rotational(), text.contains("\"hdd\""), "{name}");
            assert!(text.contains("# Source"), "{name}: sources are named");
        }
        assert!(ModelParameters::named("floppy").unwrap_err().to_string().contains("known: desktop-7200"));
    }

    #[test]
    fn what_is_wrong_with_a_model_is_said_by_key() {
        const GOOD: &str = "model = \"latency\"\nrequest_us = 500 # remark\nqueue = 64\nline_mb_s = 1_000\n";
        assert!(ModelParameters::parse(GOOD).is_ok());
        for (text, key) in [
            (GOOD.replace("queue = 64\n", ""), "queue"),
            (GOOD.replace("64", "0"), "queue"),
            (GOOD.replace("64", "many"), "queue"),
            (format!("{GOOD}queue = 3\n"), "queue"),
            (format!("{GOOD}zones = 3\n"), "zones"),
            (GOOD.replace("latency", "tape"), "model"),
            (GOOD.replace("500", "-1"), "request_us"),
        ] {
            let said = ModelParameters::parse(&text).unwrap_err().to_string();
            assert!(said.contains(&format!("`{key}`")), "{text}: {said}");
        }
        let line = ModelParameters::parse("\n\nqueue\n").unwrap_err();
        assert_eq!(line, BadModel::Line { line: 3, text: "queue".into() });
    }

    #[test]
    fn some_values_can_be_others() {
        let with =
            |key, value: &str| ModelParameters::named_with("notebook-5400-2009", &[(key, value.to_owned())]);
        assert_eq!(with("queue", "32").unwrap(), ModelParameters::named("notebook-5400-2009").unwrap());
        assert_ne!(with("queue", "1").unwrap(), ModelParameters::named("notebook-5400-2009").unwrap());
        assert!(with("units", "1").is_err() && with("queue", "0").is_err());
    }

    #[test]
    fn a_disk_is_not_smaller_than_its_device() {
        let disk = ModelParameters::named("desktop-7200-2009").unwrap();
        assert!(matches!(disk.model(1 << 60), Err(BadModel::Size { .. })));
        assert!(disk.model(2_000_000_000_000).is_ok());
    }

    #[test]
    fn rates_have_decimals() {
        assert_eq!(bytes_of_megabytes("32.5"), Some(32_500_000));
        assert_eq!(bytes_of_megabytes("1000"), Some(1_000_000_000));
        assert_eq!(bytes_of_megabytes("0.000001"), Some(1));
        for wrong in ["", ".", "-1", "1.0000001", "1e3", "many", "99999999999999999999"] {
            assert_eq!(bytes_of_megabytes(wrong), None, "{wrong:?}");
        }
    }
}
