//! Reading lists whose length is the file's to say: nothing takes memory out of proportion to its text.

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;
use std::marker::PhantomData;

/// No tensor has more dims, and no grid of pieces.
pub(crate) const DIMS_MAX: usize = 64;
/// The most memory that the metadata of a manifest may take.
const METADATA_BYTES: usize = 48 << 20;
/// Memory of a value while the list that it is in grows, and of an object besides.
const VALUE_BYTES: usize = 96;
const OBJECT_BYTES: usize = 640;

/// Reads the sizes of some dims.
pub(crate) fn dims<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<usize>, D::Error> {
    struct Dims;
    impl<'de> Visitor<'de> for Dims {
        type Value = Vec<usize>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "up to {DIMS_MAX} numbers, one for each dim")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<usize>, A::Error> {
            let (mut sizes, mut num) = ([0; DIMS_MAX], 0);
            while let Some(size) = list.next_element::<usize>()? {
                *sizes
                    .get_mut(num)
                    .ok_or_else(|| A::Error::invalid_length(num + 1, &self))? = size;
                num += 1;
            }
            Ok(sizes[..num].to_vec())
        }
    }
    reader.deserialize_seq(Dims)
}

/// Reads the factors of some dims.
pub(crate) fn factors<'de, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<Vec<Vec<usize>>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Dim(#[serde(deserialize_with = "dims")] Vec<usize>);
    let dims = Option::<Few<Dim>>::deserialize(reader)?;
    let Some(Few(dims)) = dims else {
        return Ok(None);
    };
    Ok(Some(dims.into_iter().map(|dim| dim.0).collect()))
}

/// A list of one entry for each dim.
struct Few<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let list = List(DIMS_MAX, PhantomData);
        reader.deserialize_seq(list).map(Self)
    }
}

/// Reads a list of any length.
pub(crate) fn rows<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    reader: D,
) -> Result<Vec<T>, D::Error> {
    reader.deserialize_seq(List(usize::MAX, PhantomData))
}

/// A list of so many entries at most.
struct List<T>(usize, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {}", self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut rows = Vec::new();
        while let Some(row) = list.next_element()? {
            if rows.len() == self.0 {
                return Err(A::Error::invalid_length(rows.len() + 1, &self));
            }
            push(&mut rows, row);
        }
        Ok(rows)
    }
}

/// Adds a row; makes room for a quarter more if there is none.
pub(crate) fn push<T>(rows: &mut Vec<T>, row: T) {
    if rows.len() == rows.capacity() {
        rows.reserve_exact((rows.len() / 4).max(1));
    }
    rows.push(row);
}

/// Reads an object of any values, as long as these take no more than they may.
pub(crate) fn metadata<'de, D: Deserializer<'de>>(
    reader: D,
) -> Result<Map<String, Value>, D::Error> {
    let mut left = METADATA_BYTES;
    match Seed(&mut left).deserialize(reader)? {
        Value::Object(map) => Ok(map),
        _ => Err(D::Error::custom("metadata are an object")),
    }
}

/// Reads a value and takes from what is left.
struct Seed<'a>(&'a mut usize);

impl Seed<'_> {
    fn take<E: Error>(&mut self, bytes: usize) -> Result<(), E> {
        let left = self.0.checked_sub(bytes);
        *self.0 = left.ok_or_else(|| {
            E::custom(format_args!(
                "the metadata take more than {METADATA_BYTES} bytes of memory"
            ))
        })?;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(mut self, reader: D) -> Result<Value, D::Error> {
        self.take(VALUE_BYTES)?;
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<Value, E> {
        self.take(text.len())?;
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Seed(&mut *self.0))? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        self.take(OBJECT_BYTES)?;
        let mut values = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            self.take(VALUE_BYTES + name.len())?;
            values.insert(name, map.next_value_seed(Seed(&mut *self.0))?);
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_come_back_as_they_are_or_are_refused() {
        let read = |text: &str| metadata(&mut serde_json::Deserializer::from_str(text));
        let text = r#"{"a":[1,-2,2.5,null,true,{"b":"c"},[]],"d":{},"e":18446744073709551615}"#;
        assert_eq!(read(text).unwrap(), serde_json::from_str(text).unwrap());
        for many in ["0", "{}", "{\"\":0}", "[[]]", "\"\""] {
            let text = format!("{{\"a\":[{}]}}", vec![many; 1_000_000].join(","));
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains("more than"), "{many}: {error}");
        }
        assert!(read("[]").is_err());
    }
}
