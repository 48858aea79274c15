"""lark in front: grammars and regexes as their own tools read them, lowered to masks."""
