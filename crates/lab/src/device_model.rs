//! Device models by the names that the command line takes: short names, the long names of the
//! built-in models, or paths of files.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use blockyard_device::modelled::{MODELS, ModelParameters};

/// Short names, and the models that they stand for.
pub const SHORT: [(&str, &str); 4] = [
    ("hdd", "desktop-7200-2009"),
    ("ssd", "sata-ssd-2018"),
    ("ftl", "sata-ssd-2018-ftl"),
    ("latency", "network-disk"),
];

/// A model and the name it was chosen by.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    /// The name as given.
    pub name: String,
    /// Its parameters.
    pub parameters: ModelParameters,
}

impl DeviceModel {
    /// The text of the built-in model with this name (short or long), or else of the file with this
    /// name.
    ///
    /// # Errors
    /// When no model has the name and no such file can be read.
    pub fn text(name: &str) -> Result<String> {
        let long = SHORT.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
        if let Some((_, text)) = MODELS.iter().find(|(known, _)| *known == long) {
            return Ok((*text).to_owned());
        }
        std::fs::read_to_string(Path::new(name)).with_context(|| {
            let known = SHORT.iter().map(|(short, _)| *short).chain(MODELS.map(|(known, _)| known));
            format!("{name}: neither a file nor a device model ({})", known.collect::<Vec<_>>().join(", "))
        })
    }
}

impl FromStr for DeviceModel {
    type Err = anyhow::Error;

    /// The message of an error includes its causes, because the command line shows only the
    /// message.
    fn from_str(name: &str) -> Result<Self> {
        let text = Self::text(name).map_err(|error| anyhow!("{error:#}"))?;
        let parameters = ModelParameters::parse(&text).map_err(|error| anyhow!("{name}: {error}"))?;
        Ok(Self { name: name.to_owned(), parameters })
    }
}

impl fmt::Display for DeviceModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_short_names_and_files() {
        for (short, long) in SHORT {
            let of = |name: &str| name.parse::<DeviceModel>().unwrap();
            assert_eq!(of(short).parameters, of(long).parameters);
            assert_eq!(of(short).to_string(), short);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.toml");
        std::fs::write(&path, DeviceModel::text("latency").unwrap()).unwrap();
        assert!(path.to_str().unwrap().parse::<DeviceModel>().is_ok());
        std::fs::write(&path, "model = \"tape\"").unwrap();
        let text = path.to_str().unwrap().parse::<DeviceModel>().unwrap_err().to_string();
        assert!(text.contains("one of hdd, ssd"), "{text}");
        let text = format!("{:#}", "floppy".parse::<DeviceModel>().unwrap_err());
        assert!(text.contains("hdd, ssd, ftl") && text.contains("neither a file"), "{text}");
    }
}
