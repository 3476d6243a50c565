//! The macro that declares the raw structures of fixed size: fields with their offsets, asserted at
//! compile time.
//!
//! A declaration yields a zerocopy struct with public fields, alignment 1 and no padding. Fields of
//! an ext4 structure have ext4's names. It also yields asserts for each field's offset and the
//! total size, and the items `SIZE`, `zeroed` and `FIELDS`. `FIELDS` describes the fields as data,
//! for tests that go through the fields one by one.

/// Name, offset and size in bytes of one on-disk field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPlace {
    /// The field's name; in a structure of ext4, the name that ext4 uses.
    pub name: &'static str,
    /// Byte offset from the start of the structure.
    pub offset: usize,
    /// Size in bytes (arrays: of the whole array).
    pub size: usize,
}

macro_rules! on_disk {
    (
        $(#[$meta:meta])*
        pub struct $name:ident[$size:literal] {
            $( $(#[$field_meta:meta])* $offset:literal $field:ident: $type:ty, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )+
        }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size, concat!("size of ", stringify!($name)));
            $(
                assert!(
                    core::mem::offset_of!($name, $field) == $offset,
                    concat!("offset of ", stringify!($field))
                );
            )+
        };

        impl $name {
            /// Size on disk in bytes.
            pub const SIZE: usize = $size;

            /// Every field with its offset and size, in disk order.
            pub const FIELDS: &'static [$crate::layout::FieldPlace] = &[
                $( $crate::layout::FieldPlace {
                    name: stringify!($field),
                    offset: $offset,
                    size: core::mem::size_of::<$type>(),
                }, )+
            ];

            /// A structure of zeroes.
            #[must_use]
            pub fn zeroed() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    };
}

pub(crate) use on_disk;
