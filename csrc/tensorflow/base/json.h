// SPDX-License-Identifier: Apache-2.0
//
// Writes JSON.
#ifndef RDMATENSOR_TENSORFLOW_BASE_JSON_H_
#define RDMATENSOR_TENSORFLOW_BASE_JSON_H_

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace rdmatensor {

// `text` as a JSON string.
inline std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

// A JSON value. Numbers, booleans, strings and nullptr convert to one; objects and lists grow:
//   Json::Object().Add("name", "x:0").Add("shape", Json::List().Add(64).Add(nullptr)).text()
class Json {
 public:
  template <typename Number, std::enable_if_t<std::is_arithmetic_v<Number>, bool> = true>
  Json(Number number) : text_(absl::StrCat(number)) {}
  Json(bool truth) : text_(truth ? "true" : "false") {}
  Json(std::nullptr_t) : text_("null") {}
  Json(const char* text) : text_(Quoted(text)) {}
  Json(const std::string& text) : text_(Quoted(text)) {}
  Json(absl::string_view text) : text_(Quoted(text)) {}

  static Json Object() { return Json("{", "}"); }
  static Json List() { return Json("[", "]"); }

  // To an object. Names are not looked at: a name that is added twice occurs twice.
  Json& Add(absl::string_view name, const Json& value) {
    absl::StrAppend(&text_, text_.size() == 1 ? "" : ",", Quoted(name), ":", value.text());
    return *this;
  }
  // To a list.
  Json& Add(const Json& value) {
    absl::StrAppend(&text_, text_.size() == 1 ? "" : ",", value.text());
    return *this;
  }

  std::string text() const { return text_ + end_; }

 private:
  Json(std::string text, const char* end) : text_(std::move(text)), end_(end) {}

  std::string text_;
  const char* end_ = "";
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_JSON_H_
