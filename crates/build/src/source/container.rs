//! Container images: an OCI image layout, or the output of `docker save`. The layers are applied in
//! order, including what they mark as removed (whiteouts, opaque directories).
//!
//! An image of either kind is a directory or an archive, which the caller has read into a [`Tree`].
//! This module reads from that tree.

mod choice;
mod digest;
mod layer;

use super::spool::Spool;
use super::staging::Staging;
use crate::content::Content;
use crate::error::{Error, Result};
use crate::tree::{NodeId, Origin, Tree};
use blockyard_disk::inode::FileType;
pub use choice::{Choice, Platform};
use choice::{Descriptor, Index};
use layer::Layer;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::{BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The most bytes that an index, a manifest or a configuration may have.
const JSON_MAX: u64 = 16 << 20;
/// The files that mark an OCI image layout.
const OCI_MARK: &[u8] = b"oci-layout";
const OCI_INDEX: &[u8] = b"index.json";
/// The file that marks a Docker archive.
const DOCKER_INDEX: &[u8] = b"manifest.json";

/// A manifest: the layers of one image, the lowest first.
#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Descriptor>,
}

/// One image of a Docker archive.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// The parts of an image's configuration that are used.
#[derive(Default, Deserialize)]
pub(super) struct Configuration {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
    #[serde(default)]
    rootfs: RootFs,
}

#[derive(Default, Deserialize)]
struct RootFs {
    /// Digests of the layers as uncompressed archives.
    #[serde(default)]
    diff_ids: Vec<String>,
}

impl Tree {
    /// Whether this is an OCI image layout or the content of a Docker archive, rather than a root
    /// file system.
    #[must_use]
    pub fn is_container_image(&self) -> bool {
        let store = Store(self);
        (store.file(OCI_MARK).is_some() && store.file(OCI_INDEX).is_some())
            || store.docker_images().is_ok_and(|images| {
                let is_there = |image: &DockerImage| store.file(image.config.as_bytes()).is_some();
                !images.is_empty() && images.iter().all(is_there)
            })
    }

    /// Whether a directory of the host may be a container image, by the names in it. If this says
    /// no, so does [`Tree::is_container_image`].
    #[must_use]
    pub fn may_be_container_image(folder: &Path) -> bool {
        [OCI_MARK, DOCKER_INDEX].iter().any(|mark| folder.join(OsStr::from_bytes(mark)).exists())
    }

    /// The root file system of a container image that is stored in this tree. The content of its
    /// files goes to an unnamed file in the folder `spool`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the choice matches no image or several, if a part of the image is
    /// missing or malformed, if a digest does not match, and for whatever [`Tree::read_archive`]
    /// refuses, with the layer and the entry; [`Error::Source`] if something cannot be read.
    pub fn unpack_container(&self, choice: &Choice, spool: &Path) -> Result<Self> {
        let store = Store(self);
        let layers =
            if store.file(OCI_MARK).is_some() { store.oci(choice)? } else { store.docker(choice)? };
        let mut staging = Staging::new(&self.top);
        let mut spool = Spool::new(spool)?;
        for layer in &layers {
            layer.lay(&store, &mut staging, &mut spool)?;
        }
        // From here on, messages are about the image as a whole.
        staging.begin(&self.top);
        staging.into_tree(Origin::Spool(spool.into_file()))
    }
}

/// The tree that stores a container image.
pub(super) struct Store<'t>(&'t Tree);

impl<'t> Store<'t> {
    pub(super) fn refused(&self, path: &[u8], reason: impl Into<String>) -> Error {
        Error::Refused { path: self.0.host_path(path), reason: reason.into() }
    }

    fn file(&self, path: &[u8]) -> Option<NodeId> {
        self.0.find(path).filter(|&id| self.0.node(id).kind == FileType::Regular)
    }

    /// The content of a file. In a Docker archive a layer may be a symbolic link.
    pub(super) fn open(&self, path: &[u8]) -> Result<Content<'t>> {
        let mut id = self.0.find(path);
        if let Some(link) = id.filter(|&id| self.0.node(id).kind == FileType::Symlink) {
            let target = self.0.directory(link.directory).text(self.0.node(link).target);
            let place = self.0.directory_path(link.directory);
            id = self.0.find(&joined(&place, target));
        }
        let id = id.filter(|&id| self.0.node(id).kind == FileType::Regular);
        let id = id.ok_or_else(|| self.refused(path, "a part of the image is missing"))?;
        Ok(Content::new(self.0, id))
    }

    fn json<T: DeserializeOwned>(&self, path: &[u8]) -> Result<T> {
        serde_json::from_reader(BufReader::new(self.open(path)?.take(JSON_MAX)))
            .map_err(|error| self.refused(path, format!("not the expected JSON: {error}")))
    }

    /// Verifies the digest of a blob (an object that is found by its digest), and parses the blob.
    fn blob<T: DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<T> {
        let path = descriptor.path().map_err(|reason| self.refused(OCI_INDEX, reason))?;
        let content = self.open(&path)?.take(JSON_MAX);
        descriptor.digest().check(content).map_err(|reason| self.refused(&path, reason))?;
        self.json(&path)
    }

    /// The layers of an image in an OCI layout.
    fn oci(&self, choice: &Choice) -> Result<Vec<Layer>> {
        let index: Index = self.json(OCI_INDEX)?;
        let of = |manifest: &Descriptor| self.configuration(manifest);
        let below = |index: &Descriptor| self.blob::<Index>(index);
        let chosen = choice.among(&index, below, of, |reason| self.refused(OCI_INDEX, reason))?;
        let manifest: Manifest = self.blob(&chosen)?;
        manifest
            .layers
            .iter()
            .map(|layer| Layer::of_oci(layer).map_err(|reason| self.refused(OCI_INDEX, reason)))
            .collect()
    }

    /// The configuration that a manifest refers to.
    fn configuration(&self, manifest: &Descriptor) -> Result<Configuration> {
        #[derive(Deserialize)]
        struct OfManifest {
            config: Descriptor,
        }
        let of_manifest: OfManifest = self.blob(manifest)?;
        self.blob(&of_manifest.config)
    }

    fn docker_images(&self) -> Result<Vec<DockerImage>> {
        self.json(DOCKER_INDEX)
    }

    /// The layers of an image in a Docker archive.
    fn docker(&self, choice: &Choice) -> Result<Vec<Layer>> {
        let images = self.docker_images()?;
        let is_named = |image: &&DockerImage| match &choice.reference {
            Some(wanted) => image.repo_tags.iter().flatten().any(|tag| tag == wanted),
            None => true,
        };
        let named: Vec<&DockerImage> = images.iter().filter(is_named).collect();
        let [image] = named[..] else {
            let tags: Vec<&str> =
                images.iter().flat_map(|image| image.repo_tags.iter().flatten()).map(|tag| &**tag).collect();
            let reason =
                format!("{} images fit; choose one with --reference: {}", named.len(), tags.join(", "));
            return Err(self.refused(DOCKER_INDEX, reason));
        };
        let configuration: Configuration = self.json(image.config.as_bytes())?;
        if configuration.rootfs.diff_ids.len() != image.layers.len() {
            return Err(
                self.refused(image.config.as_bytes(), "its number of layers differs from manifest.json")
            );
        }
        choice.check(&configuration).map_err(|reason| self.refused(DOCKER_INDEX, reason))?;
        let layers = image.layers.iter().zip(&configuration.rootfs.diff_ids);
        layers
            .map(|(path, digest)| {
                Layer::of_docker(path, digest).map_err(|reason| self.refused(path.as_bytes(), reason))
            })
            .collect()
    }
}

/// The target of a link as a path, resolved against the link's directory.
fn joined(place: &[u8], target: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = place.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
    for name in target.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join(&b'/')
}
