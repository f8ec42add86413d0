# CUDA support of the build. Sets TANDEM_HAS_CUDA; tandem_cuda_target(TARGET) gives a target with .cu sources its options.
#
# CMake 3.22 to 3.25 do not know that nvcc 12 and 13 have a CUDA standard 20; and they are told where nvcc is, since its
# usual folder is not in the PATH of a plain shell.

set(TANDEM_HAS_CUDA FALSE)
if(NOT TANDEM_CUDA MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|1|0)$")
  message(FATAL_ERROR "TANDEM_CUDA: expected AUTO, ON or OFF, found \"${TANDEM_CUDA}\"")
endif()
if(TANDEM_CUDA STREQUAL "AUTO" AND TANDEM_SANITIZE)
  message(STATUS "CUDA: off in a sanitizer build")
elseif(TANDEM_CUDA STREQUAL "AUTO" OR TANDEM_CUDA)
  find_program(TANDEM_NVCC nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin)
  set(problem "")
  if(NOT TANDEM_NVCC)
    set(problem "nvcc was not found (looked in PATH, /usr/local/cuda/bin and /opt/cuda/bin)")
  else()
    execute_process(COMMAND ${TANDEM_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_VARIABLE known_error
                    RESULT_VARIABLE status)
    string(REGEX MATCHALL "sm_[0-9]+" known "${known}")
    if(status OR NOT known)
      set(problem "${TANDEM_NVCC} --list-gpu-code failed: ${known_error}")
    endif()
  endif()
  if(NOT problem)
    # sm_80 A100, 86 RTX 30, 89 RTX 40, 90 H100/H200, 120 RTX 50. Newer cards start from the PTX of the last one.
    set(archs "")
    foreach(arch ${TANDEM_CUDA_ARCHS})
      if(NOT "sm_${arch}" IN_LIST known)
        message(FATAL_ERROR "TANDEM_CUDA_ARCHS: expected numbers that ${TANDEM_NVCC} knows (${known}), found \"${arch}\"")
      endif()
      list(APPEND archs ${arch})
    endforeach()
    if(NOT archs)
      foreach(arch 80 86 89 90 120)
        if("sm_${arch}" IN_LIST known)
          list(APPEND archs ${arch})
        endif()
      endforeach()
    endif()
    list(POP_BACK archs last)
    list(TRANSFORM archs APPEND "-real")
    set(CMAKE_CUDA_ARCHITECTURES ${archs} ${last})  # the last one: machine code and PTX
    set(CMAKE_CUDA_COMPILER ${TANDEM_NVCC})
    include(CheckLanguage)
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
      set(problem "${TANDEM_NVCC} cannot compile with ${CMAKE_CXX_COMPILER}")
    endif()
  endif()
  if(problem AND TANDEM_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA: off, ${problem}")
  elseif(problem)
    message(FATAL_ERROR "TANDEM_CUDA is ON, but ${problem}. Install the CUDA toolkit or configure with -DTANDEM_CUDA=OFF")
  else()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(TANDEM_HAS_CUDA TRUE)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION --std=c++20)  # what CMake itself sets from 3.25.2 on
    endif()
    message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES}")
  endif()
endif()

# The floating-point options are the contract of docs/numerics.md (R1). What ptxas says of registers and spills is kept
# beside every object, as OBJECT.ptxas: tests/check_spills.py reads it.
function(tandem_cuda_target target)
  find_program(BASH bash REQUIRED)
  set_property(TARGET ${target} PROPERTY CUDA_COMPILER_LAUNCHER ${BASH} ${CMAKE_SOURCE_DIR}/cmake/keep_ptxas.sh ${CCACHE})
  set_property(TARGET ${target} PROPERTY CUDA_RUNTIME_LIBRARY Static)  # no library to look for at start
  target_link_libraries(${target} PUBLIC CUDA::cudart_static)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-ftz=false -prec-div=true -prec-sqrt=true -fmad=false
    -Xptxas=-v -Xcompiler=-Wall,-Wextra,-Wshadow,-ffp-contract=off
    -DFMT_USE_CONSTEXPR=1>)  # fmt 9 takes nvcc for older than it is, and then refuses the format strings of CHECK
endfunction()
