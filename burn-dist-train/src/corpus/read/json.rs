//! JSON that is kept as text, with the fields of objects in their order.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

/// The text of a JSON value, without white space between its parts.
pub(super) struct Json(pub(super) String);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut text = String::new();
        Writer(&mut text).deserialize(deserializer)?;
        Ok(Self(text))
    }
}

/// Appends a value to a text.
struct Writer<'a>(&'a mut String);

impl Writer<'_> {
    fn add<E: serde::de::Error>(self, value: impl Serialize) -> Result<(), E> {
        *self.0 += &serde_json::to_string(&value).map_err(E::custom)?;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Writer<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Writer<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.add(())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.add(value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.add(value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.add(value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.add(value)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.add(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.0.push('[');
        let first = self.0.len();
        loop {
            let before = self.0.len();
            if before > first {
                self.0.push(',');
            }
            if list.next_element_seed(Writer(self.0))?.is_none() {
                self.0.truncate(before);
                self.0.push(']');
                return Ok(());
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.0.push('{');
        let mut is_first = true;
        while let Some(name) = map.next_key::<String>()? {
            if !is_first {
                self.0.push(',');
            }
            is_first = false;
            Writer(self.0).add::<A::Error>(name)?;
            self.0.push(':');
            map.next_value_seed(Writer(self.0))?;
        }
        self.0.push('}');
        Ok(())
    }
}
