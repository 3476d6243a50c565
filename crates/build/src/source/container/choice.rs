//! Choosing one of several container images, by name and platform.

use super::Configuration;
use super::digest::Digest;
use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::str::FromStr;

/// The most levels of nested indexes, the outermost included.
const DEPTH_MAX: u32 = 4;
/// The most entries that an index and all indexes nested in it may have together.
const ENTRIES_MAX: usize = 1 << 16;
/// The annotation that names an image.
const NAME: &str = "org.opencontainers.image.ref.name";
/// The annotation with the full name of an image.
const FULL_NAME: &str = "io.containerd.image.name";
/// The annotation that marks an entry that is no image, but describes one (an attestation).
const ABOUT: &str = "vnd.docker.reference.type";

/// Which of several images to take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The name or tag of the image, as it is stored; `None` accepts any.
    pub reference: Option<String>,
    /// The platform of the image. In an OCI layout, `None` takes the image for this machine, or
    /// else the only image. In a Docker archive, `reference` alone chooses the image, which must
    /// then have this platform; `None` accepts any.
    pub platform: Option<Platform>,
}

/// The platform of an image, such as `linux/arm64` or `linux/arm/v7`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Platform {
    /// Operating system.
    pub os: String,
    /// CPU architecture, by Go's name.
    pub architecture: String,
    /// Version of the architecture, if it has several. In a [`Choice`], `None` accepts any.
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    /// Linux on this machine's CPU architecture.
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

    /// Whether this platform is the one asked for. If no variant was asked for, any matches.
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

/// A list of images, or of other lists.
#[derive(Clone, Deserialize)]
pub(super) struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

/// The description of an object that is found by its digest.
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

    /// The object's path in the layout.
    pub(super) fn path(&self) -> std::result::Result<Vec<u8>, String> {
        self.digest().path()
    }

    fn is_index(&self) -> bool {
        self.media_type.contains("image.index") || self.media_type.contains("manifest.list")
    }

    fn is_named(&self, wanted: &str) -> bool {
        [NAME, FULL_NAME].iter().any(|key| self.annotations.get(*key).is_some_and(|name| name == wanted))
    }

    /// A description for messages.
    fn described(&self) -> String {
        let name = self.annotations.get(NAME).map_or(&*self.digest_text, |name| name);
        self.platform.as_ref().map_or_else(|| name.to_owned(), |platform| format!("{name} ({platform})"))
    }
}

impl Choice {
    /// The manifest of the only image in an index that has the name and the platform asked for. If
    /// no platform was asked for, the image for this machine is taken, or, if there is none, the
    /// only image with the name. `below` reads a nested index, and `of` reads the configuration of
    /// an image.
    pub(super) fn among(
        &self,
        index: &Index,
        below: impl Fn(&Descriptor) -> Result<Index>,
        of: impl Fn(&Descriptor) -> Result<Configuration>,
        refused: impl Fn(String) -> Error,
    ) -> Result<Descriptor> {
        let is_named = |found: &&Descriptor| self.reference.as_ref().is_none_or(|name| found.is_named(name));
        let mut level: Vec<Descriptor> = index.manifests.iter().filter(is_named).cloned().collect();
        if let Some(name) = &self.reference
            && level.is_empty()
            && !index.manifests.is_empty()
        {
            let there: Vec<String> = index.manifests.iter().map(Descriptor::described).collect();
            return Err(refused(format!("no image is named {name}; there are: {}", there.join(", "))));
        }
        let mut images: Vec<Descriptor> = Vec::new();
        // An index that is listed again, or that lists itself, adds nothing.
        let (mut seen, mut entries) = (HashSet::new(), level.len());
        for _ in 0..DEPTH_MAX {
            let (lists, found): (Vec<_>, Vec<_>) = level.into_iter().partition(Descriptor::is_index);
            images.extend(found.into_iter().filter(|found| !found.annotations.contains_key(ABOUT)));
            level = Vec::new();
            for list in lists {
                if !seen.insert(list.digest_text.clone()) {
                    continue;
                }
                level.extend(below(&list)?.manifests);
                if entries + level.len() > ENTRIES_MAX {
                    return Err(refused(format!("its indexes list more than {ENTRIES_MAX} images")));
                }
            }
            entries += level.len();
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
            // The only image, and no platform was asked for.
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

    /// Checks that an image is for the requested platform.
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
