// JSON with comments and trailing commas: positions, duplicates, syntax errors.
#include "config/jsonc.h"

#include <gtest/gtest.h>

#include "zero/errors.h"

namespace zero::config::config_jsonc_test {
namespace {

std::string problems_of(std::string_view text) {
  Problems problems("c.json");
  parse_jsonc(text, problems);
  try {
    problems.throw_if_any();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(ConfigJsonc, LinesOfKeysAtEveryDepth) {
  Problems problems("c.json");
  const Document document = parse_jsonc("{\n\"a\": 1,\n\n\"b\": {\"c\": [\n{\"d\": 2}\n]}}", problems);
  ASSERT_TRUE(problems.empty());
  EXPECT_EQ(document.line_of("a"), 2);
  EXPECT_EQ(document.line_of("b.c"), 4);
  EXPECT_EQ(document.line_of("b.c[0].d"), 5);
  EXPECT_EQ(document.line_of("b.x.y"), 4) << "nearest parent";
  EXPECT_EQ(document.line_of("x"), 0);
}

TEST(ConfigJsonc, CommentsAndTrailingCommas) {
  Problems problems("c.json");
  const Document document = parse_jsonc(
      "\xEF\xBB\xBF// head\n{ /* one\n two */ \"a\": [1, 2, /* x */ ], // , }\n \"url\": \"http://x/*y*/\", "
      "\"e\": {},\n}\n",
      problems);
  ASSERT_TRUE(problems.empty());
  EXPECT_EQ(document.root.dump(), R"({"a":[1,2],"e":{},"url":"http://x/*y*/"})");
  EXPECT_EQ(document.line_of("a"), 3);
  EXPECT_EQ(document.line_of("url"), 4);
}

TEST(ConfigJsonc, EscapedKeysAndQuotes) {
  Problems problems("c.json");
  const Document document = parse_jsonc("{\"a\\\"b\": \"x\\\\\",\n\"\\u0063\": 1}", problems);
  ASSERT_TRUE(problems.empty());
  EXPECT_EQ(document.line_of("a\"b"), 1);
  EXPECT_EQ(document.line_of("c"), 2);
}

TEST(ConfigJsonc, DuplicateKeysNameBothLines) {
  EXPECT_EQ(problems_of("{\"a\": 1,\n\"b\": {\"a\": 1},\n\"a\": 2}"),
            "c.json:3: a: given twice, first on line 1; remove one");
  EXPECT_EQ(problems_of("{\"s\": {\"x\": 1,\n \"x\": 1}}"), "c.json:2: s.x: given twice, first on line 1; remove one");
  EXPECT_EQ(problems_of("{\"l\": [{\"x\": 1}, {\"x\": 1}]}"), "");
}

TEST(ConfigJsonc, SyntaxErrorsNameTheLine) {
  EXPECT_TRUE(problems_of("{\n\"a\": 1\n\"b\": 2}").starts_with("c.json:3: not valid JSON: syntax error"));
  EXPECT_TRUE(problems_of("{\n\"a\": \n}").starts_with("c.json:3: not valid JSON"));
  EXPECT_TRUE(problems_of("{\"a\": 1,,}").starts_with("c.json:1: not valid JSON"));
  EXPECT_TRUE(problems_of("{,}").starts_with("c.json:1: not valid JSON"));
  EXPECT_TRUE(problems_of("[,1]").starts_with("c.json:1: not valid JSON"));
  EXPECT_TRUE(problems_of("{\"a\": NaN}").starts_with("c.json:1: not valid JSON"));
  EXPECT_TRUE(problems_of("{\"a\": 1e999}").find("not valid JSON") != std::string::npos);
  EXPECT_TRUE(problems_of("{} {}").starts_with("c.json:1: not valid JSON"));
  EXPECT_EQ(problems_of("{\n# x\n}"), "c.json:2: comments with '#' are not accepted; use // or /* */");
  EXPECT_EQ(problems_of("{\n/* x\n"), "c.json:2: this /* comment is never closed");
  EXPECT_EQ(problems_of("{\n\"abc\n\": 1}"),
            "c.json:2: this string is never closed; want \" before the end of the line");
}

TEST(ConfigJsonc, EmptyHugeAndDeep) {
  EXPECT_EQ(problems_of(""), "c.json:1: empty; want a JSON object, at least {\"train_batch_size\": ...}");
  EXPECT_TRUE(problems_of(" \n// only a comment\n").find("empty") != std::string::npos);
  EXPECT_TRUE(problems_of(std::string(100'000, '[')).find("nested more than 64 deep") != std::string::npos);
  EXPECT_TRUE(problems_of(std::string((16 << 20) + 1, ' ')).find("a configuration has at most") != std::string::npos);
}

TEST(ConfigJsonc, NoInputCrashes) {
  const std::string text = "{\"a\\n\": [1, {\"b\": \"\\u00e4\"}, ], /* c */ \"d\": {\"e\": -1.5e3,}, // f\n}";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    problems_of(text.substr(0, cut));
    for (const char c : {'"', '\\', '{', '}', ']', ',', '/', '*', '\n', '\0', '\xff'}) {
      std::string damaged = text;
      if (cut < text.size()) damaged[cut] = c;
      problems_of(damaged);
    }
  }
}

}  // namespace
}  // namespace zero::config::config_jsonc_test
