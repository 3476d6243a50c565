//! Which image of several is taken.

use super::Configuration;
use super::digest::Digest;
use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// An index in an index and so on, at most.
const DEPTH_MAX: u32 = 4;
/// The annotation that names an image.
const NAME: &str = "org.opencontainers.image.ref.name";
/// The one that names it whole.
const FULL_NAME: &str = "io.containerd.image.name";
/// The annotation of what is about an image and none itself.
const ABOUT: &str = "vnd.docker.reference.type";

/// Which image of several is taken. The default is the one for Linux on this machine's kind of CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The name or tag of the image, as its store has it.
    pub reference: Option<String>,
    /// The platform that it is for; `None` is this one, or the only one that there is.
    pub platform: Option<Platform>,
}

/// What an image is made for: `linux/arm64`, `linux/arm/v7`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Platform {
    /// Operating system.
    pub os: String,
    /// Kind of CPU, by Go's name.
    pub architecture: String,
    /// Version of the CPU, where there are some.
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    /// Linux on this machine's kind of CPU.
    pub(crate) fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// Whether what is asked for is this, as far as it is asked.
    fn fits(&self, asked: &Self) -> bool {
        self.os == asked.os
            && self.architecture == asked.architecture
            && (asked.variant.is_none() || asked.variant == self.variant)
    }
}

impl FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant.to_owned())),
            _ => return Err(format!("{text}: a platform is OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT")),
        };
        Ok(Self { os: os.to_owned(), architecture: architecture.to_owned(), variant })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// A list of images, or of lists of them.
#[derive(Clone, Deserialize)]
pub(super) struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

/// What is told of something that is found by its digest.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    #[serde(rename = "digest")]
    pub(super) digest_text: String,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub(super) fn digest(&self) -> Digest {
        Digest(self.digest_text.clone())
    }

    /// Where the layout keeps it.
    pub(super) fn path(&self) -> std::result::Result<Vec<u8>, String> {
        self.digest().path()
    }

    fn is_index(&self) -> bool {
        self.media_type.contains("image.index") || self.media_type.contains("manifest.list")
    }

    fn is_named(&self, wanted: &str) -> bool {
        [NAME, FULL_NAME].iter().any(|key| self.annotations.get(*key).is_some_and(|name| name == wanted))
    }

    /// What people can tell it by.
    fn described(&self) -> String {
        let name = self.annotations.get(NAME).map_or(&*self.digest_text, |name| name);
        self.platform.as_ref().map_or_else(|| name.to_owned(), |platform| format!("{name} ({platform})"))
    }
}

impl Choice {
    /// The manifest of the one image of an index that fits. `below` reads an index in the index,
    /// `of` the configuration of an image.
    pub(super) fn among(
        &self,
        index: &Index,
        below: impl Fn(&Descriptor) -> Result<Index>,
        of: impl Fn(&Descriptor) -> Result<Configuration>,
        refused: impl Fn(String) -> Error,
    ) -> Result<Descriptor> {
        let is_named = |found: &&Descriptor| self.reference.as_ref().is_none_or(|name| found.is_named(name));
        let mut level: Vec<Descriptor> = index.manifests.iter().filter(is_named).cloned().collect();
        let mut images: Vec<Descriptor> = Vec::new();
        for _ in 0..DEPTH_MAX {
            let (lists, found): (Vec<_>, Vec<_>) = level.into_iter().partition(Descriptor::is_index);
            images.extend(found.into_iter().filter(|found| !found.annotations.contains_key(ABOUT)));
            level = Vec::new();
            for list in lists {
                level.extend(below(&list)?.manifests);
            }
        }
        for image in images.iter_mut().filter(|image| image.platform.is_none()) {
            let told = of(image)?;
            image.platform = Some(told.platform());
        }
        let asked = self.platform.clone().unwrap_or_else(Platform::here);
        let fits =
            |image: &&Descriptor| image.platform.as_ref().is_some_and(|platform| platform.fits(&asked));
        let fitting: Vec<&Descriptor> = images.iter().filter(fits).collect();
        match (&fitting[..], &images[..]) {
            ([one], _) => Ok((*one).clone()),
            // The only one there is, and nothing else was asked for.
            ([], [one]) if self.platform.is_none() => Ok(one.clone()),
            (fitting, images) => {
                let there: Vec<String> = images.iter().map(Descriptor::described).collect();
                let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
                Err(refused(format!(
                    "{} images fit {asked}; choose one with --reference or --platform; there are: {there}",
                    fitting.len()
                )))
            }
        }
    }

    /// Whether an image is for the platform that was asked for.
    pub(super) fn check(&self, configuration: &Configuration) -> std::result::Result<(), String> {
        let found = configuration.platform();
        match &self.platform {
            Some(asked) if !found.fits(asked) => Err(format!("the image is for {found}, not for {asked}")),
            _ => Ok(()),
        }
    }
}

impl Configuration {
    fn platform(&self) -> Platform {
        Platform {
            os: self.os.clone(),
            architecture: self.architecture.clone(),
            variant: self.variant.clone(),
        }
    }
}
