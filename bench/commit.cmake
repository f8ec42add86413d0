# Writes OUT with the commit of SOURCE, and leaves the file alone when nothing changed. cmake -DOUT= -DSOURCE= -P commit.cmake
execute_process(COMMAND git describe --always --dirty --exclude=* WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR commit STREQUAL "")
  set(commit unknown)
endif()
set(text "inline constexpr const char* kBuildCommit = \"${commit}\";\n")
if(EXISTS ${OUT})
  file(READ ${OUT} present)
endif()
if(NOT "${present}" STREQUAL "${text}")
  file(WRITE ${OUT} "${text}")
endif()
