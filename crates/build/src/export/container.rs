//! A tree as a container image: an OCI layout with one layer.

use super::Exported;
use crate::error::{Error, Result};
use crate::source::Platform;
use crate::stream::Compression;
use crate::tree::Tree;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// How to make a container image.
#[derive(Clone, Debug)]
pub struct ContainerOptions {
    /// How the layer is compressed.
    pub compression: Compression,
    /// The target platform; `None` is Linux on this machine's CPU architecture.
    pub platform: Option<Platform>,
    /// The image's name or tag; `None` for an image without one.
    pub reference: Option<String>,
}

impl Default for ContainerOptions {
    fn default() -> Self {
        Self { compression: Compression::Gzip, platform: None, reference: None }
    }
}

impl Compression {
    /// The suffix of a layer's media type after `tar`.
    const fn of_layer(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => "+gzip",
            Self::Zstd => "+zstd",
        }
    }
}

impl Tree {
    /// Writes an OCI image layout, with the tree as its only layer, into the folder `at`, which
    /// must exist and be empty. The same tree and options give the same files. If the options name
    /// no platform, the files also depend on the machine's CPU architecture.
    ///
    /// # Errors
    /// Those of [`Tree::write_archive`]; [`Error::Refused`] for names that begin with `.wh.`, which
    /// would mark removals in a layer.
    pub fn write_container(&self, at: &Path, options: &ContainerOptions) -> Result<Exported> {
        self.write_container_watched(at, options, &mut |_| Ok(()))
    }

    /// As [`Tree::write_container`]. `watch` gets the uncompressed size in bytes of each piece of
    /// the layer that was written, and can stop the work with an error.
    ///
    /// # Errors
    /// As [`Tree::write_container`]; an error of `watch` is returned as [`Error::Output`].
    pub fn write_container_watched(
        &self,
        at: &Path,
        options: &ContainerOptions,
        watch: &mut dyn FnMut(usize) -> io::Result<()>,
    ) -> Result<Exported> {
        self.walk(|id, path| {
            let is_whiteout = id.is_some_and(|id| self.name(id).starts_with(b".wh."));
            if is_whiteout {
                let reason =
                    "in a layer, this name would remove another; export a tar archive instead".to_owned();
                return Err(Error::Refused { path: self.host_path(path), reason });
            }
            Ok(())
        })?;
        let failed = |error: io::Error| Error::Output { path: at.to_owned(), error };
        let blobs = at.join("blobs/sha256");
        for folder in [at.join("blobs"), blobs.clone()] {
            fs::create_dir(&folder).and_then(|()| set_mode(&folder, 0o755)).map_err(failed)?;
        }
        let partial = at.join("layer.partial");
        let file = File::create_new(&partial).map_err(failed)?;
        let (exported, layer, archive) =
            self.write_layer(Watched { into: file, watch }, options.compression, &partial)?;
        set_mode(&partial, 0o644).map_err(failed)?;
        fs::rename(&partial, blobs.join(&layer.digest)).map_err(failed)?;
        let platform = options.platform.clone().unwrap_or_else(Platform::here);
        let blob = |kind: &str, value: &serde_json::Value| -> Result<serde_json::Value> {
            let text = value.to_string();
            let blob = Blob { digest: hexadecimal(&Sha256::digest(&text)), size: text.len() };
            write(&blobs.join(&blob.digest), &text).map_err(failed)?;
            Ok(blob.described(kind))
        };
        let mut configuration = json!({
            "architecture": platform.architecture,
            "os": platform.os,
            "config": {},
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{archive}")] },
            "history": [{ "created_by": "blockyard export" }],
        });
        if let Some(variant) = &platform.variant {
            configuration["variant"] = json!(variant);
        }
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob("config.v1+json", &configuration)?,
            "layers": [layer.described(&format!("layer.v1.tar{}", options.compression.of_layer()))],
        });
        let mut manifest = blob("manifest.v1+json", &manifest)?;
        manifest["platform"] = json!({ "os": platform.os, "architecture": platform.architecture });
        if let Some(variant) = &platform.variant {
            manifest["platform"]["variant"] = json!(variant);
        }
        if let Some(name) = &options.reference {
            manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        }
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [manifest],
        });
        write(&at.join("index.json"), &index.to_string()).map_err(failed)?;
        let version = json!({ "imageLayoutVersion": "1.0.0" }).to_string();
        write(&at.join("oci-layout"), &version).map_err(failed)?;
        Ok(exported)
    }

    /// Writes the layer. Returns what was exported, the layer's digest and size, and the digest of
    /// the uncompressed archive.
    fn write_layer(
        &self,
        file: Watched<'_, File>,
        compression: Compression,
        name: &Path,
    ) -> Result<(Exported, Blob, String)> {
        let failed = |error: io::Error| Error::Output { path: name.to_owned(), error };
        let Watched { into: file, watch } = file;
        let outer = Hashing::new(BufWriter::with_capacity(1 << 20, file));
        let mut inner = Hashing::new(compression.encoder(outer).map_err(failed)?);
        let exported = self.write_archive(Watched { into: &mut inner, watch }, name)?;
        let archive = inner.digest();
        let mut outer = inner.into.finish().map_err(failed)?;
        outer.flush().map_err(failed)?;
        let size = outer.bytes;
        Ok((exported, Blob { digest: outer.digest(), size }, archive))
    }
}

/// A writer that passes the length of each write to `watch`.
struct Watched<'w, W> {
    into: W,
    watch: &'w mut dyn FnMut(usize) -> io::Result<()>,
}

impl<W: Write> Write for Watched<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.into.write(bytes)?;
        (self.watch)(n)?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

/// Writes a file of the layout. Its mode does not depend on the user's umask.
fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    set_mode(path, 0o644)
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, PermissionsExt::from_mode(mode))
}

/// A file of the layout whose name is its digest.
struct Blob {
    digest: String,
    size: usize,
}

impl Blob {
    fn described(&self, kind: &str) -> serde_json::Value {
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{}", self.digest),
            "size": self.size,
        })
    }
}

/// Hashes and counts what is written.
struct Hashing<W> {
    into: W,
    hasher: Sha256,
    bytes: usize,
}

impl<W> Hashing<W> {
    fn new(into: W) -> Self {
        Self { into, hasher: Sha256::new(), bytes: 0 }
    }

    fn digest(&self) -> String {
        hexadecimal(&self.hasher.clone().finalize())
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.into.write(bytes)?;
        self.hasher.update(&bytes[..n]);
        self.bytes += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
